package replication

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

func localObject(change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "core.kcp.io/v1alpha1",
		"kind":       "Shard",
		"metadata": map[string]any{
			"name":              "amber",
			"uid":               "local-uid",
			"resourceVersion":   "7",
			"generation":        int64(3),
			"creationTimestamp": "2026-01-02T03:04:05Z",
			"labels":            map[string]any{"name": "amber"},
			"annotations": map[string]any{
				"kcp.io/cluster": "root",
				"kcp.io/path":    "root",
				"custom":         "kept",
			},
			"finalizers":    []any{"some/finalizer"},
			"managedFields": []any{map[string]any{"manager": "kubectl", "operation": "Update", "fieldsV1": map[string]any{"f:spec": map[string]any{}}}},
		},
		"spec":   map[string]any{"baseURL": "https://amber", "n": int64(1)},
		"status": map[string]any{"ready": true},
	}}
	for _, f := range change {
		f(obj)
	}
	return obj
}

// replicaOf returns what the cache server would serve for obj.
func replicaOf(obj *unstructured.Unstructured, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	replica := Resource{}.desired(obj).DeepCopy()
	replica.SetResourceVersion("99")
	annotations := replica.GetAnnotations()
	annotations["kcp.io/cluster"] = "root"
	annotations[request.ShardAnnotation] = "amber"
	replica.SetAnnotations(annotations)
	for _, f := range change {
		f(replica)
	}
	return replica
}

func TestDesired(t *testing.T) {
	local := localObject()
	before := local.DeepCopy()
	got := Resource{shard: "amber"}.desired(local)
	require.Equal(t, before, local, "the source must not change")
	require.Equal(t, map[string]any{
		"apiVersion": "core.kcp.io/v1alpha1",
		"kind":       "Shard",
		"metadata": map[string]any{
			"name":              "amber",
			"uid":               "local-uid",
			"generation":        int64(3),
			"creationTimestamp": "2026-01-02T03:04:05Z",
			"labels":            map[string]any{"name": "amber"},
			"finalizers":        []any{"some/finalizer"},
			"managedFields":     before.Object["metadata"].(map[string]any)["managedFields"],
			"annotations": map[string]any{
				"kcp.io/path":                     "root",
				"custom":                          "kept",
				request.ShardAnnotation:           "amber",
				request.OriginalVersionAnnotation: "7",
				request.OriginalUIDAnnotation:     "local-uid",
			},
		},
		"spec":   map[string]any{"baseURL": "https://amber", "n": int64(1)},
		"status": map[string]any{"ready": true},
	}, got.Object)
}

// TestDesiredOfDeleted holds that a replica cannot say, and an annotation does, that its object
// is being deleted.
func TestDesiredOfDeleted(t *testing.T) {
	local := localObject(func(o *unstructured.Unstructured) {
		o.SetAnnotations(map[string]string{request.DeletingAnnotation: "a lie"})
	})
	require.NotContains(t, Resource{}.desired(local).GetAnnotations(), request.DeletingAnnotation)
	local.SetDeletionTimestamp(&metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)})
	local.SetDeletionGracePeriodSeconds(new(int64))
	got := Resource{}.desired(local)
	require.Equal(t, "2026-01-02T03:04:06Z", got.GetAnnotations()[request.DeletingAnnotation])
	require.Nil(t, got.GetDeletionTimestamp())
	require.Nil(t, got.GetDeletionGracePeriodSeconds())
	require.Equal(t, local.GetFinalizers(), got.GetFinalizers())
}

func TestDecide(t *testing.T) {
	everything := Resource{}
	marked := Resource{Filter: tenancy.Replicated}
	terminating := func(obj *unstructured.Unstructured) { now := metav1.Now(); obj.SetDeletionTimestamp(&now) }
	gone := localObject(terminating)
	tests := []struct {
		name           string
		resource       Resource
		local, replica *unstructured.Unstructured
		want           action
	}{
		{"nothing anywhere", everything, nil, nil, actionNone},
		{"new object", everything, localObject(), nil, actionCreate},
		{"same", everything, localObject(), replicaOf(localObject()), actionNone},
		{"object gone", everything, nil, replicaOf(localObject()), actionDelete},
		{"object terminating", everything, localObject(terminating), replicaOf(localObject()), actionUpdate},
		{"object terminating, as its replica says", everything, gone, replicaOf(gone), actionNone},
		{"terminating object without a replica", everything, localObject(terminating), nil, actionCreate},
		{"in a logical cluster of the system", everything, localObject(func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{"kcp.io/cluster": "system:admin"})
		}), nil, actionNone},
		{"spec changed in the shard", everything, localObject(func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(o.Object, "https://other", "spec", "baseURL")
		}), replicaOf(localObject()), actionUpdate},
		{"newer version in the shard", everything, localObject(func(o *unstructured.Unstructured) { o.SetResourceVersion("8") }), replicaOf(localObject()), actionUpdate},
		{"recreated in the shard", everything, localObject(func(o *unstructured.Unstructured) { o.SetUID("other") }), replicaOf(localObject()), actionUpdate},
		{"status edited in the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(o.Object, false, "status", "ready")
		}), actionUpdate},
		{"field added to the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) { o.Object["extra"] = "x" }), actionUpdate},
		{"field removed from the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) { delete(o.Object, "status") }), actionUpdate},
		{"field swapped in the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) {
			delete(o.Object, "status")
			o.Object["extra"] = "x"
		}), actionUpdate},
		{"label added to the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"name": "amber", "x": "y"}) }), actionUpdate},
		{"annotation removed from the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) { o.SetAnnotations(nil) }), actionUpdate},
		{"finalizer added to the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"a/b"}) }), actionUpdate},
		{"left-over with a finalizer", everything, nil, replicaOf(localObject()), actionDelete},
		{"UID edited in the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) { o.SetUID("x") }), actionUpdate},
		{"generation edited in the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) { o.SetGeneration(4) }), actionUpdate},
		{"managed fields edited in the replica", everything, localObject(), replicaOf(localObject(), func(o *unstructured.Unstructured) { o.SetManagedFields(nil) }), actionUpdate},
		{"not marked", marked, localObject(), nil, actionNone},
		{"mark removed", marked, localObject(), replicaOf(localObject()), actionDelete},
		{"marked by annotation", marked, localObject(func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{"internal.kcp.io/replicate": "who"})
		}), nil, actionCreate},
		{"marked by label", marked, localObject(func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"internal.kcp.io/replicate": "who"}) }), nil, actionCreate},
		{"marked by nobody", marked, localObject(func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{"internal.kcp.io/replicate": ""})
		}), nil, actionNone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, obj := decide(tt.resource, tt.local, tt.replica)
			require.Equal(t, tt.want, got)
			switch got {
			case actionCreate:
				require.Empty(t, obj.GetResourceVersion())
				require.Equal(t, Resource{}.desired(tt.local), obj)
			case actionUpdate:
				require.Equal(t, "99", obj.GetResourceVersion(), "an update must name the version that was compared")
				obj.SetResourceVersion("")
				want := Resource{}.desired(tt.local)
				if want.GetUID() != tt.replica.GetUID() {
					want.SetUID("") // the server has it from the annotation
				}
				require.Equal(t, want, obj)
			case actionDelete:
				require.Equal(t, tt.replica, obj, "what is deleted must be what was compared")
			case actionNone:
				require.Nil(t, obj)
			}
		})
	}
}

func TestTable(t *testing.T) {
	_, err := NewTable(append(Defaults(), Defaults()...)...)
	require.ErrorContains(t, err, "already")
	table, err := NewTable(Defaults()...)
	require.NoError(t, err)
	lines, changed := table.snapshot()
	require.Len(t, lines, len(Defaults()))
	for resource, l := range lines {
		require.Equal(t, resource, l.GroupResource())
		require.NotEmpty(t, l.Version)
	}
	require.NoError(t, table.Remove(t.Context(), schema.GroupResource{Resource: "configmaps"}), "what is not there has gone")

	// Who waits for a removal in vain can wait again, and meanwhile it is there.
	shards := schema.GroupResource{Group: "core.kcp.io", Resource: "shards"}
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		require.ErrorIs(t, table.Remove(impatient, shards), context.Canceled)
	}
	require.ErrorContains(t, table.Add(Resource{GroupVersionResource: shards.WithVersion("v1")}), "being removed")
	<-changed
	now, _ := table.snapshot()
	require.NotSame(t, lines[shards], now[shards], "who follows the line starts over")
	table.gone(lines[shards])
	require.Error(t, table.Remove(impatient, shards), "another line is gone")
	table.gone(now[shards])
	require.NoError(t, table.Remove(impatient, shards))
	require.NoError(t, table.Add(Resource{GroupVersionResource: shards.WithVersion("v1")}))
}
