package replicas

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// OfOthers returns the options of an informer of the replicas of shards other than self. It drops replicas of self,
// because the shard itself has newer objects, and shows deletions (see ShowDeletion).
func OfOthers[T client.Object](self string, options client.InformerOptions[T]) client.InformerOptions[T] {
	keep, transform := options.Keep, options.Transform
	options.Keep = func(obj T) bool {
		shard := obj.GetAnnotations()[request.ShardAnnotation]
		return (shard == "" || shard != self) && (keep == nil || keep(obj))
	}
	options.Transform = func(obj T) (T, error) {
		obj, err := ShowDeletion(obj)
		if err != nil || transform == nil {
			return obj, err
		}
		return transform(obj)
	}
	return options
}

// ShowDeletion is an InformerOptions.Transform for replicas. If the object is being deleted on its shard, it sets
// metadata.deletionTimestamp from an annotation, because a replica cannot have a deletionTimestamp. Readers need not
// distinguish replicas from objects.
func ShowDeletion[T client.Object](replica T) (T, error) {
	since := replica.GetAnnotations()[request.DeletingAnnotation]
	if since == "" || replica.GetDeletionTimestamp() != nil {
		return replica, nil
	}
	at, err := time.Parse(time.RFC3339, since)
	if err != nil {
		at = replica.GetCreationTimestamp().Time // the time is unknown
	}
	replica.SetDeletionTimestamp(&metav1.Time{Time: at})
	return replica, nil
}
