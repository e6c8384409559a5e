package replication

import (
	"maps"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/request"
)

// action is what has to happen to a replica.
type action string

const (
	actionNone   action = "none"
	actionCreate action = "create"
	actionUpdate action = "update"
	actionDelete action = "delete"
	// actionRelease takes finalizers off a replica that has to go. Replicas get
	// none from here, but somebody may have added one, and nobody on the cache
	// server would ever remove it.
	actionRelease action = "release"
)

// decide compares an object with its replica; either may be nil. It returns
// what to do and, for all but none, the object to write or the replica to
// delete. It does not change its arguments.
func decide(resource Resource, local, replica *unstructured.Unstructured) (action, *unstructured.Unstructured) {
	wanted := local != nil && resource.selects(local)
	switch {
	case !wanted && replica == nil:
		return actionNone, nil
	case replica == nil:
		return actionCreate, resource.desired(local)
	case (!wanted || replica.GetDeletionTimestamp() != nil) && len(replica.GetFinalizers()) > 0:
		released := replica.DeepCopy()
		released.SetFinalizers(nil)
		return actionRelease, released
	case !wanted:
		return actionDelete, replica
	}

	want := resource.desired(local)
	if sameContent(want, replica) {
		return actionNone, nil
	}
	// The version makes the write fail if the replica is not the compared one.
	want.SetResourceVersion(replica.GetResourceVersion())
	return actionUpdate, want
}

// desired returns the replica that an object should have, as it is written to
// the cache server. Content and most metadata are the object's own; left out is
// what every server sets for itself, and finalizers, which bind only in the shard.
func (r Resource) desired(local *unstructured.Unstructured) *unstructured.Unstructured {
	replica := &unstructured.Unstructured{Object: maps.Clone(local.Object)}
	replica.Object["metadata"] = map[string]any{}
	replica.SetName(local.GetName())
	replica.SetNamespace(local.GetNamespace())
	replica.SetLabels(local.GetLabels())
	replica.SetOwnerReferences(local.GetOwnerReferences())

	annotations := ownAnnotations(local)
	annotations[request.OriginalVersionAnnotation] = local.GetResourceVersion()
	annotations[request.OriginalUIDAnnotation] = string(local.GetUID())
	if _, has := annotations[core.LogicalClusterPathAnnotationKey]; !has && r.path != nil {
		if path := r.path(logicalcluster.From(local)); path != "" {
			annotations[core.LogicalClusterPathAnnotationKey] = path
		}
	}
	replica.SetAnnotations(annotations)
	return replica
}

// sameContent reports whether a replica has the desired content. What the cache
// server itself puts into an object does not count.
func sameContent(want, replica *unstructured.Unstructured) bool {
	if !maps.Equal(want.GetLabels(), replica.GetLabels()) ||
		!maps.Equal(want.GetAnnotations(), ownAnnotations(replica)) ||
		!equality.Semantic.DeepEqual(want.GetOwnerReferences(), replica.GetOwnerReferences()) ||
		len(replica.GetFinalizers()) > 0 || len(want.Object) != len(replica.Object) {
		return false
	}
	for key, value := range want.Object {
		if key == "metadata" {
			continue
		}
		other, ok := replica.Object[key]
		if !ok || !equality.Semantic.DeepEqual(value, other) {
			return false
		}
	}
	return true
}

// ownAnnotations returns a copy of an object's annotations without those that
// the server it lives on sets.
func ownAnnotations(obj *unstructured.Unstructured) map[string]string {
	// GetAnnotations of Unstructured returns a fresh map.
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	delete(annotations, logicalcluster.AnnotationKey)
	delete(annotations, request.ShardAnnotation)
	return annotations
}
