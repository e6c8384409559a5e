package client

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/request"
)

// ShowDeletion is an InformerOptions.Transform for replicas on a cache server. Of one whose
// object is being deleted on its shard it sets metadata.deletionTimestamp, which cannot be
// stored in a replica: an annotation has it there. So who reads need not know whether an
// object is one of the own shard.
func ShowDeletion[T Object](replica T) (T, error) {
	since := replica.GetAnnotations()[request.DeletingAnnotation]
	if since == "" || replica.GetDeletionTimestamp() != nil {
		return replica, nil
	}
	at, err := time.Parse(time.RFC3339, since)
	if err != nil {
		at = replica.GetCreationTimestamp().Time // whenever it was
	}
	replica.SetDeletionTimestamp(&metav1.Time{Time: at})
	return replica, nil
}

// after returns a Transform that does first and then, where that is not nil, next.
func after[T Object](first, next func(T) (T, error)) func(T) (T, error) {
	if next == nil {
		return first
	}
	return func(obj T) (T, error) {
		obj, err := first(obj)
		if err != nil {
			return obj, err
		}
		return next(obj)
	}
}

// due returns the versions of objects that are not known, or not as they are.
func (i *Informer[T]) due(present map[Key]T) map[Key]string {
	due := map[Key]string{}
	for key, obj := range present {
		if known, ok := i.store.get(key); !ok || known.GetResourceVersion() != obj.GetResourceVersion() {
			due[key] = obj.GetResourceVersion()
		}
	}
	return due
}

// hasAll reports whether all objects are known, or were, as they are or later.
func (i *Informer[T]) hasAll(present map[Key]T) bool {
	for key, obj := range present {
		if known, ok := i.store.get(key); !ok || older(known.GetResourceVersion(), obj.GetResourceVersion()) {
			return false
		}
	}
	return true
}
