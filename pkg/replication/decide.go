package replication

import (
	"errors"
	"maps"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
)

// Action is the change that a replica needs.
type Action string

// The actions.
const (
	ActionNone   Action = "none"
	ActionCreate Action = "create"
	ActionUpdate Action = "update"
	ActionDelete Action = "delete"
)

// Decide compares an object with its replica, each of which may be nil. It returns the action and the object to write,
// or the replica to delete. It does not change its arguments.
func Decide(resource Resource, local, replica *unstructured.Unstructured) (Action, *unstructured.Unstructured) {
	wanted := local != nil && resource.Selects(local)
	switch {
	case !wanted && replica == nil:
		return ActionNone, nil
	case replica == nil:
		return ActionCreate, resource.Desired(local)
	case !wanted:
		return ActionDelete, replica
	}

	want := resource.Desired(local)
	if equality.Semantic.DeepEqual(Canonical(want), Canonical(replica)) {
		return ActionNone, nil
	}
	return ActionUpdate, Following(want, replica)
}

// Following prepares want to replace a replica. The resource version makes the write fail if the replica has changed.
// Without a UID, the server takes it from the annotation with the original UID.
func Following(want, replica *unstructured.Unstructured) *unstructured.Unstructured {
	want.SetResourceVersion(replica.GetResourceVersion())
	if want.GetUID() != replica.GetUID() {
		want.SetUID("")
	}
	return want
}

// Desired returns the replica of an object, with annotations for the metadata that the cache server does not store.
func (r Resource) Desired(local *unstructured.Unstructured) *unstructured.Unstructured {
	metadata, _ := local.Object["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	for _, field := range []string{"resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		delete(metadata, field)
	}
	replica := &unstructured.Unstructured{Object: maps.Clone(local.Object)}
	replica.Object["metadata"] = metadata
	annotations := local.GetAnnotations() // a copy
	if annotations == nil {
		annotations = map[string]string{}
	}
	if r.relayed {
		if annotations[request.OriginalUIDAnnotation] == "" {
			// The shard has written it to the cache server itself, without the annotation.
			annotations[request.OriginalUIDAnnotation] = string(local.GetUID())
			replica.SetAnnotations(annotations)
		}
		return replica
	}

	delete(annotations, logicalcluster.AnnotationKey)
	annotations[request.ShardAnnotation] = r.shard
	annotations[request.OriginalVersionAnnotation] = local.GetResourceVersion()
	annotations[request.OriginalUIDAnnotation] = string(local.GetUID())
	delete(annotations, request.DeletingAnnotation)
	if since, _, _ := unstructured.NestedString(local.Object, "metadata", "deletionTimestamp"); since != "" {
		annotations[request.DeletingAnnotation] = since
	}
	replica.SetAnnotations(annotations)
	return replica
}

// Canonical returns the compared part of a replica: without its resource version and the annotations that the cache
// server adds. It is the same before and after the replica is written. It shares data with the replica.
func Canonical(replica *unstructured.Unstructured) map[string]any {
	content := maps.Clone(replica.Object)
	metadata, _ := content["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	delete(metadata, "resourceVersion")
	annotations := map[string]any{}
	for key, value := range replica.GetAnnotations() {
		if key != logicalcluster.AnnotationKey && key != request.ShardAnnotation {
			annotations[key] = value
		}
	}
	metadata["annotations"] = annotations
	content["metadata"] = metadata
	return content
}

var errNoMetadata = errors.New("the replica has no metadata")

// HashReplica returns the hash by which a shard and a cache server compare a replica, before and after it is written.
func HashReplica(key string, replica map[string]any) (uint64, error) {
	if _, ok := replica["metadata"].(map[string]any); !ok {
		return 0, errNoMetadata
	}
	return digest.Hash(key, Canonical(&unstructured.Unstructured{Object: replica}))
}

// Problem is the difference between a replica and its object.
type Problem string

// The problems.
const (
	// ProblemMissing is an object without a replica.
	ProblemMissing Problem = "missing"
	// ProblemOrphaned is a replica whose object does not exist or is not selected.
	ProblemOrphaned Problem = "orphaned"
	// ProblemDifferent is a replica with other content than its object.
	ProblemDifferent Problem = "different"
)

// Problem returns the problem that the action fixes, or "".
func (a Action) Problem() Problem {
	return map[Action]Problem{ActionCreate: ProblemMissing, ActionUpdate: ProblemDifferent, ActionDelete: ProblemOrphaned}[a]
}
