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

// Action is what has to happen to a replica.
type Action string

// What can happen to a replica.
const (
	ActionNone   Action = "none"
	ActionCreate Action = "create"
	ActionUpdate Action = "update"
	ActionDelete Action = "delete"
)

// Decide compares an object with its replica; either may be nil. It returns
// what to do and, for all but none, the object to write or the replica to
// delete. It does not change its arguments.
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
	if sameContent(want, replica) {
		return ActionNone, nil
	}
	return ActionUpdate, Following(want, replica)
}

// Following returns what is to take the place of a replica, which it changes to say so. The
// version makes the write fail if the replica is not the compared one. Another UID would
// do so as well: without any, the server takes it from the annotation that has the
// original's.
func Following(want, replica *unstructured.Unstructured) *unstructured.Unstructured {
	want.SetResourceVersion(replica.GetResourceVersion())
	if want.GetUID() != replica.GetUID() {
		want.SetUID("")
	}
	return want
}

// Desired returns the replica that an object should have, as it is written to the cache
// server: the object, with annotations that say what a replica of it is not itself.
func (r Resource) Desired(local *unstructured.Unstructured) *unstructured.Unstructured {
	metadata, _ := local.Object["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	for _, field := range []string{"resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		delete(metadata, field)
	}
	replica := &unstructured.Unstructured{Object: maps.Clone(local.Object)}
	replica.Object["metadata"] = metadata
	if r.relayed {
		if annotations := local.GetAnnotations(); annotations[request.OriginalUIDAnnotation] == "" {
			// The shard has written it itself, and has none of it.
			metadata["annotations"] = withAnnotation(annotations, request.OriginalUIDAnnotation, string(local.GetUID()))
		}
		return replica
	}

	annotations := ownAnnotations(local)
	annotations[request.ShardAnnotation] = r.shard
	annotations[request.OriginalVersionAnnotation] = local.GetResourceVersion()
	annotations[request.OriginalUIDAnnotation] = string(local.GetUID())
	delete(annotations, request.DeletingAnnotation)
	if since := deletion(local); since != "" {
		annotations[request.DeletingAnnotation] = since
	}
	replica.SetAnnotations(annotations)
	return replica
}

func withAnnotation(annotations map[string]string, key, value string) map[string]any {
	all := make(map[string]any, len(annotations)+1)
	for name, value := range annotations {
		all[name] = value
	}
	all[key] = value
	return all
}

// deletion returns since when an object is being deleted, as its shard says it; empty if it
// is not.
func deletion(obj *unstructured.Unstructured) string {
	since, _, _ := unstructured.NestedString(obj.Object, "metadata", "deletionTimestamp")
	return since
}

// sameContent reports whether a replica is as it should be.
func sameContent(want, replica *unstructured.Unstructured) bool {
	return equality.Semantic.DeepEqual(Canonical(want), Canonical(replica))
}

// Canonical returns what of a replica is compared, and it is the same of a replica that is
// to be written and of one that is as it should be. It shares what it can with the replica.
func Canonical(replica *unstructured.Unstructured) map[string]any {
	content := maps.Clone(replica.Object)
	metadata, _ := content["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	delete(metadata, "resourceVersion")
	annotations := map[string]any{}
	for key, value := range ownAnnotations(replica) {
		annotations[key] = value
	}
	metadata["annotations"] = annotations
	content["metadata"] = metadata
	return content
}

// ownAnnotations returns a copy of an object's annotations without those that the cache server
// gives to all it has, and the one that replicas alone have.
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

var errNoMetadata = errors.New("it has no metadata")

// HashReplica returns the hash of a replica, by which a shard and a cache server compare what they
// have under a key: equal for a replica that is to be written, and one that is as it should be.
func HashReplica(key string, replica map[string]any) (uint64, error) {
	if _, ok := replica["metadata"].(map[string]any); !ok {
		return 0, errNoMetadata
	}
	return digest.Hash(key, Canonical(&unstructured.Unstructured{Object: replica}))
}

// Problem says in which way a replica is not as it should be.
type Problem string

// The ways in which a replica can be wrong.
const (
	// ProblemMissing is an object without a replica.
	ProblemMissing Problem = "missing"
	// ProblemLeftOver is a replica whose object is gone or not selected.
	ProblemOrphaned Problem = "left over"
	// ProblemDifferent is a replica with another content than its object.
	ProblemDifferent Problem = "different"
)

// ProblemOf returns what is wrong with a replica, or nothing.
func ProblemOf(resource Resource, local, replica *unstructured.Unstructured) Problem {
	switch todo, _ := Decide(resource, local, replica); {
	case todo == ActionNone:
		return ""
	case replica == nil:
		return ProblemMissing
	case local == nil || !resource.Selects(local):
		return ProblemOrphaned
	default:
		return ProblemDifferent
	}
}
