package replication

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// edit is a change of an object.
type edit func(*unstructured.Unstructured)

func set(value any, path ...string) edit {
	return func(o *unstructured.Unstructured) { _ = unstructured.SetNestedField(o.Object, value, path...) }
}

func metadata(value any, path ...string) edit {
	return set(value, append([]string{"metadata"}, path...)...)
}

func without(path ...string) edit {
	return func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, path...) }
}

func localObject(change ...edit) *unstructured.Unstructured {
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

// replicaOf returns obj as the cache server would serve it.
func replicaOf(obj *unstructured.Unstructured, change ...edit) *unstructured.Unstructured {
	replica := Resource{}.Desired(obj).DeepCopy()
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
	got := Resource{shard: "amber"}.Desired(local)
	require.Equal(t, before, local, "the source object must not change")
	want := localObject(without("metadata", "resourceVersion"), set(map[string]any{
		"kcp.io/path": "root", "custom": "kept", request.ShardAnnotation: "amber",
		request.OriginalVersionAnnotation: "7", request.OriginalUIDAnnotation: "local-uid",
	}, "metadata", "annotations"))
	require.Equal(t, want.Object, got.Object)
}

// TestDesiredOfDeletedObject checks the annotation of replicas whose objects are being deleted.
func TestDesiredOfDeletedObject(t *testing.T) {
	local := localObject(metadata("forged", "annotations", request.DeletingAnnotation))
	require.NotContains(t, Resource{}.Desired(local).GetAnnotations(), request.DeletingAnnotation)
	local.SetDeletionTimestamp(&metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)})
	local.SetDeletionGracePeriodSeconds(new(int64))
	got := Resource{}.Desired(local)
	require.Equal(t, "2026-01-02T03:04:06Z", got.GetAnnotations()[request.DeletingAnnotation])
	require.Nil(t, got.GetDeletionTimestamp())
	require.Nil(t, got.GetDeletionGracePeriodSeconds())
	require.Equal(t, local.GetFinalizers(), got.GetFinalizers())
}

func TestDecide(t *testing.T) {
	all, filtered := Resource{}, Resource{Filter: tenancy.Replicated}
	local, replica := localObject(), replicaOf(localObject())
	terminating := func(obj *unstructured.Unstructured) { now := metav1.Now(); obj.SetDeletionTimestamp(&now) }
	deleting := localObject(terminating)
	ofSystem := localObject(metadata("system:admin", "annotations", "kcp.io/cluster"))
	annotated := localObject(metadata("reason", "annotations", "internal.kcp.io/replicate"))
	edited := func(change ...edit) *unstructured.Unstructured { return replicaOf(local, change...) }
	tests := []struct {
		name           string
		resource       Resource
		local, replica *unstructured.Unstructured
		want           Action
	}{
		{"nothing anywhere", all, nil, nil, ActionNone},
		{"new object", all, local, nil, ActionCreate},
		{"same", all, local, replica, ActionNone},
		{"deleted object with a finalizer", all, nil, replica, ActionDelete},
		{"terminating object", all, localObject(terminating), replica, ActionUpdate},
		{"terminating object with a current replica", all, deleting, replicaOf(deleting), ActionNone},
		{"terminating object without a replica", all, localObject(terminating), nil, ActionCreate},
		{"object in a system logical cluster", all, ofSystem, nil, ActionNone},
		{"spec changed in the shard", all, localObject(set("https://other", "spec", "baseURL")), replica, ActionUpdate},
		{"newer version in the shard", all, localObject(metadata("8", "resourceVersion")), replica, ActionUpdate},
		{"recreated in the shard", all, localObject(metadata("other", "uid")), replica, ActionUpdate},
		{"status edited in the replica", all, local, edited(set(false, "status", "ready")), ActionUpdate},
		{"field added to the replica", all, local, edited(set("x", "extra")), ActionUpdate},
		{"field removed from the replica", all, local, edited(without("status")), ActionUpdate},
		{"field swapped in the replica", all, local, edited(without("status"), set("x", "extra")), ActionUpdate},
		{"label added to the replica", all, local, edited(metadata("y", "labels", "x")), ActionUpdate},
		{"annotation removed from the replica", all, local, edited(without("metadata", "annotations")), ActionUpdate},
		{"finalizer added to the replica", all, local, edited(metadata([]any{"a/b"}, "finalizers")), ActionUpdate},
		{"UID edited in the replica", all, local, edited(metadata("x", "uid")), ActionUpdate},
		{"generation edited in the replica", all, local, edited(metadata(int64(4), "generation")), ActionUpdate},
		{"managed fields edited in the replica", all, local, edited(without("metadata", "managedFields")), ActionUpdate},
		{"not selected", filtered, local, nil, ActionNone},
		{"no longer selected", filtered, local, replica, ActionDelete},
		{"selected by annotation", filtered, annotated, nil, ActionCreate},
		{"selected by label", filtered, localObject(metadata("reason", "labels", "internal.kcp.io/replicate")), nil, ActionCreate},
		{"empty annotation", filtered, localObject(metadata("", "annotations", "internal.kcp.io/replicate")), nil, ActionNone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, obj := Decide(tt.resource, tt.local, tt.replica)
			require.Equal(t, tt.want, got)
			switch got {
			case ActionCreate:
				require.Empty(t, obj.GetResourceVersion())
				require.Equal(t, Resource{}.Desired(tt.local), obj)
			case ActionUpdate:
				require.Equal(t, "99", obj.GetResourceVersion(), "an update must contain the compared version")
				obj.SetResourceVersion("")
				want := Resource{}.Desired(tt.local)
				if want.GetUID() != tt.replica.GetUID() {
					want.SetUID("") // the server has it from the annotation
				}
				require.Equal(t, want, obj)
			case ActionDelete:
				require.Equal(t, tt.replica, obj, "the deleted replica must be the compared one")
			case ActionNone:
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
	lines, changed := table.Lines()
	require.Len(t, lines, len(Defaults()))
	for resource, l := range lines {
		require.Equal(t, resource, l.GroupResource())
		require.NotEmpty(t, l.Version)
	}
	require.NoError(t, table.Remove(t.Context(), schema.GroupResource{Resource: "configmaps"}), "the removal of an unknown resource must succeed")

	// A canceled removal can be repeated, and the resource remains in the table meanwhile.
	shards := schema.GroupResource{Group: "core.kcp.io", Resource: "shards"}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		require.ErrorIs(t, table.Remove(canceled, shards), context.Canceled)
	}
	require.ErrorContains(t, table.Add(Resource{GroupVersionResource: shards.WithVersion("v1")}), "being removed")
	<-changed
	now, _ := table.Lines()
	require.NotSame(t, lines[shards], now[shards], "followers of the line must start over")
	table.Delete(lines[shards])
	require.Error(t, table.Remove(canceled, shards), "the deletion of the previous line must not complete the removal")
	table.Delete(now[shards])
	require.NoError(t, table.Remove(canceled, shards))
	require.NoError(t, table.Add(Resource{GroupVersionResource: shards.WithVersion("v1")}))
}

// TestHashesAgreeWithDecisions checks that the hashes of both sides are equal exactly if there is nothing to do, also
// after encoding and decoding.
func TestHashesAgreeWithDecisions(t *testing.T) {
	hash := func(replica *unstructured.Unstructured) uint64 {
		t.Helper()
		text, err := json.Marshal(replica.Object)
		require.NoError(t, err)
		content := map[string]any{}
		require.NoError(t, utiljson.Unmarshal(text, &content))
		hash, err := HashReplica("root|amber", content)
		require.NoError(t, err)
		return hash
	}
	local := localObject(func(o *unstructured.Unstructured) {
		o.Object["spec"] = map[string]any{"float": 1.5, "whole": 2.0, "large": int64(1) << 60, "null": nil, "html": "<&>", "list": []any{}}
	})
	want, err := HashReplica("root|amber", Resource{}.Desired(local).Object)
	require.NoError(t, err)
	for name, change := range map[string]edit{
		"nothing":          func(*unstructured.Unstructured) {},
		"version":          metadata("123", "resourceVersion"),
		"spec":             set(map[string]any{}, "spec"),
		"no spec":          without("spec"),
		"more":             set("x", "more"),
		"labels":           metadata("y", "labels", "x"),
		"no labels":        without("metadata", "labels"),
		"annotations":      without("metadata", "annotations"),
		"finalizers":       metadata([]any{"a/b"}, "finalizers"),
		"kind":             set("Other", "kind"),
		"original version": metadata("8", "annotations", request.OriginalVersionAnnotation),
	} {
		replica := replicaOf(local, change)
		todo, _ := Decide(Resource{}, local, replica)
		require.Equal(t, todo == ActionNone, hash(replica) == want, name)
	}
}
