package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

type recorder struct {
	patches []string
	version int
	fail    map[string]error
}

func (r *recorder) Patch(_ context.Context, name string, pt types.PatchType, data []byte, _ metav1.PatchOptions, subresources ...string) (*tenancyv1alpha1.Workspace, error) {
	sub := strings.Join(subresources, "/")
	if err := r.fail[sub]; err != nil {
		return nil, err
	}
	if pt != types.MergePatchType {
		return nil, errors.New("not a merge patch")
	}
	r.patches = append(r.patches, sub+" "+string(data))
	r.version++
	ws := workspace(name)
	ws.ResourceVersion = string(rune('0' + r.version))
	return ws, nil
}

func workspace(name string) *tenancyv1alpha1.Workspace {
	return &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "u", ResourceVersion: "5", Annotations: map[string]string{"kcp.io/cluster": "root", "a": "1"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
}

func TestCommit(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{}, "w", errors.New("changed"))
	const finalizers = ` {"metadata":{"finalizers":["f"],"resourceVersion":"5","uid":"u"}}`
	const ready = `"status":{"phase":"Ready"}}`
	both := func(w *tenancyv1alpha1.Workspace) { w.Finalizers, w.Status.Phase = []string{"f"}, "Ready" }
	cases := map[string]struct {
		change  func(*tenancyv1alpha1.Workspace)
		fail    map[string]error
		want    []string
		wantErr error
		version string
	}{
		"nothing": {change: func(*tenancyv1alpha1.Workspace) {}, version: "5"},
		"metadata that the server sets": {
			change:  func(w *tenancyv1alpha1.Workspace) { w.ManagedFields, w.Generation = nil, 7 },
			version: "5",
		},
		"metadata and spec": {
			change: func(w *tenancyv1alpha1.Workspace) {
				w.Annotations["b"] = "2"
				delete(w.Annotations, "a")
				w.Spec.Cluster = "c"
			},
			want:    []string{` {"metadata":{"annotations":{"a":null,"b":"2"},"resourceVersion":"5","uid":"u"},"spec":{"cluster":"c"}}`},
			version: "1",
		},
		"status": {
			change:  func(w *tenancyv1alpha1.Workspace) { w.Status.Phase = "Ready" },
			want:    []string{`status {"metadata":{"resourceVersion":"5","uid":"u"},` + ready},
			version: "1",
		},
		"metadata and status": {
			change: both, version: "2",
			want: []string{finalizers, `status {"metadata":{"resourceVersion":"1","uid":"u"},` + ready},
		},
		"conflict in the first write": {
			change: both, fail: map[string]error{"": conflict}, wantErr: conflict, version: "5",
		},
		"conflict in the second write": {
			change: both, fail: map[string]error{"status": conflict}, wantErr: conflict, version: "1",
			want: []string{finalizers},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := &recorder{fail: tc.fail}
			old := workspace("w")
			updated := old.DeepCopy()
			tc.change(updated)
			got, err := Commit(t.Context(), r, old, updated)
			require.ErrorIs(t, err, tc.wantErr)
			if tc.wantErr != nil {
				require.True(t, apierrors.IsConflict(err), "the wrapped error must be a conflict")
			}
			require.Equal(t, tc.want, r.patches)
			require.Equal(t, tc.version, got.ResourceVersion)
		})
	}
}

func TestDifference(t *testing.T) {
	type m = map[string]any
	cases := map[string]struct{ from, to, want m }{
		"nothing":         {from: m{"a": "1", "b": m{"c": []any{"x"}}}, to: m{"a": "1", "b": m{"c": []any{"x"}}}, want: m{}},
		"new and changed": {from: m{"a": "1"}, to: m{"a": "2", "b": int64(3)}, want: m{"a": "2", "b": int64(3)}},
		"removed":         {from: m{"a": "1", "b": m{"c": "1"}}, to: m{"b": m{}}, want: m{"a": nil, "b": m{"c": nil}}},
		"nested":          {from: m{"a": m{"b": m{"c": "1", "d": "2"}}}, to: m{"a": m{"b": m{"c": "1", "d": "3"}}}, want: m{"a": m{"b": m{"d": "3"}}}},
		"changed list":    {from: m{"a": []any{"x", "y"}}, to: m{"a": []any{"x", "z"}}, want: m{"a": []any{"x", "z"}}},
		"another type":    {from: m{"a": m{"b": "1"}}, to: m{"a": "1"}, want: m{"a": "1"}},
		"new empty map":   {from: m{}, to: m{"a": m{}}, want: m{"a": m{}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, difference(tc.from, tc.to)) })
	}
}

func TestCommitReplacesAllConditions(t *testing.T) {
	r := &recorder{}
	old := workspace("w")
	conditions.MarkTrue(old, tenancyv1alpha1.WorkspaceScheduled)
	updated := old.DeepCopy()
	conditions.MarkTrue(updated, tenancyv1alpha1.WorkspaceInitialized)
	_, err := Commit(t.Context(), r, old, updated)
	require.NoError(t, err)
	require.Len(t, r.patches, 1)
	var patch tenancyv1alpha1.Workspace
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(r.patches[0], "status ")), &patch))
	require.Len(t, patch.Status.Conditions, 2)
	require.True(t, conditions.IsTrue(&patch, tenancyv1alpha1.WorkspaceScheduled))
	require.True(t, conditions.IsTrue(&patch, tenancyv1alpha1.WorkspaceInitialized))
	require.Equal(t, "5", patch.ResourceVersion)
}

func TestLatest(t *testing.T) {
	at := func(version string) *tenancyv1alpha1.Workspace {
		w := workspace("w")
		w.ResourceVersion = version
		return w
	}
	key := client.KeyOf(at("1"))
	var l Latest[*tenancyv1alpha1.Workspace]

	got, exists := l.Of(key, at("1"), true)
	require.True(t, exists)
	require.Equal(t, "1", got.ResourceVersion)

	l.Wrote(at("10"))
	l.Wrote(at("9"))
	got, _ = l.Of(key, at("8"), true)
	require.Equal(t, "10", got.ResourceVersion, "the own write must be returned while the informer lags")
	require.True(t, l.Is(at("10")))
	require.False(t, l.Is(at("11")))
	got, _ = l.Of(key, at("11"), true)
	require.Equal(t, "11", got.ResourceVersion, "the object of the informer must be returned after it has caught up")
	require.Empty(t, l.objects)

	l.Wrote(at("12"))
	_, exists = l.Of(key, nil, false)
	require.False(t, exists, "a deleted object must not be returned")
	require.Empty(t, l.objects)

	l.Wrote(at("13"))
	other := at("2")
	other.UID = "another"
	other.ResourceVersion = "13"
	require.False(t, l.Is(other))
	got, _ = l.Of(key, other, true)
	require.Equal(t, "13", got.ResourceVersion, "an object with another UID must not be compared")
	require.False(t, l.Is(at("13")), "the replaced object must be forgotten")
}

type storedWorkspace struct {
	object *unstructured.Unstructured
	writes int
}

func (s *storedWorkspace) Modify(_ context.Context, _ logicalcluster.Name, _ schema.GroupResource, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	if s.object.GetName() != name {
		return nil, apierrors.NewNotFound(kinds.Workspaces.GroupResource(), name)
	}
	changed := s.object.DeepCopy()
	if err := change(changed); err != nil {
		return nil, err
	}
	changed.SetResourceVersion("6")
	s.object, s.writes = changed, s.writes+1
	return changed.DeepCopy(), nil
}

func TestCommitStored(t *testing.T) {
	for name, tc := range map[string]struct {
		change     func(*tenancyv1alpha1.Workspace)
		stored     func(*unstructured.Unstructured)
		generation int64
		writes     int
		requests   int
		conflict   bool
		deleting   bool
	}{
		"nothing": {change: func(*tenancyv1alpha1.Workspace) {}, generation: 3},
		"status and labels": {change: func(ws *tenancyv1alpha1.Workspace) {
			ws.Labels = map[string]string{"b": "2"}
			ws.Annotations = map[string]string{"kcp.io/cluster": "root"}
			ws.Status.Phase = "Ready"
			conditions.MarkTrue(ws, "Ready")
		}, generation: 3, writes: 1},
		"spec":              {change: func(ws *tenancyv1alpha1.Workspace) { ws.Spec.Cluster = "c" }, generation: 4, writes: 1},
		"removed finalizer": {change: func(ws *tenancyv1alpha1.Workspace) { ws.Finalizers = []string{"g"} }, generation: 3, requests: 1},
		"added finalizer": {change: func(ws *tenancyv1alpha1.Workspace) {
			ws.Finalizers, ws.Spec.Cluster = []string{"g", "f"}, "c"
		}, generation: 4, writes: 1},
		"added owner": {change: func(ws *tenancyv1alpha1.Workspace) {
			ws.OwnerReferences = []metav1.OwnerReference{{Kind: "ConfigMap", Name: "a", UID: "a"}}
		}, generation: 3, requests: 1},
		"finalizer added during deletion": {change: func(ws *tenancyv1alpha1.Workspace) {
			ws.Finalizers = []string{"f", "g"}
		}, deleting: true, generation: 3, requests: 1},
		"changed concurrently": {
			change: func(ws *tenancyv1alpha1.Workspace) { ws.Status.Phase = "Ready" }, generation: 3,
			stored: func(u *unstructured.Unstructured) { u.SetResourceVersion("4") }, conflict: true,
		},
		"replaced concurrently": {
			change: func(ws *tenancyv1alpha1.Workspace) { ws.Status.Phase = "Ready" }, generation: 3,
			stored: func(u *unstructured.Unstructured) { u.SetUID("another") }, conflict: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := workspace("w")
			old.ManagedFields = nil
			old.Generation, old.Finalizers = 3, []string{"f"}
			if tc.deleting {
				old.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
			require.NoError(t, err)
			s, r := &storedWorkspace{object: &unstructured.Unstructured{Object: object}}, &recorder{version: 5}
			if tc.stored != nil {
				tc.stored(s.object)
			}
			updated := old.DeepCopy()
			tc.change(updated)
			written, err := CommitStored(t.Context(), s, kinds.Workspaces.GroupResource(), r, old, updated)
			require.Equal(t, tc.conflict, apierrors.IsConflict(err), "%v", err)
			require.Equal(t, tc.writes, s.writes)
			require.Len(t, r.patches, tc.requests)
			if tc.conflict {
				require.Same(t, old, written)
				return
			}
			require.NoError(t, err)
			if tc.writes > 0 {
				require.Equal(t, "6", written.ResourceVersion)
				updated.ResourceVersion, updated.Generation = "6", tc.generation
				require.True(t, equality.Semantic.DeepEqual(updated, written), "%v", written)
			}
			require.Equal(t, tc.generation, s.object.GetGeneration())
		})
	}
	missing := workspace("missing")
	changed := missing.DeepCopy()
	changed.Status.Phase = "Ready"
	_, err := CommitStored(t.Context(), &storedWorkspace{object: &unstructured.Unstructured{}}, kinds.Workspaces.GroupResource(), &recorder{}, missing, changed)
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
