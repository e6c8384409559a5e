package replicas

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
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

// ShowDeletion is an InformerOptions.Transform for replicas. It sets metadata.deletionTimestamp from an annotation if
// the object is being deleted on its shard, because a replica cannot have a deletionTimestamp.
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

// Saved makes an informer a source of a snapshot.
type Saved[T client.Object] struct {
	informer *client.Informer[T]
	changes  atomic.Uint64
}

var _ snapshot.Source = &Saved[client.Object]{}

// NewSaved returns the source of an informer that does not run yet.
func NewSaved[T client.Object](informer *client.Informer[T]) *Saved[T] {
	s := &Saved[T]{informer: informer}
	changed := func(client.Key) { s.changes.Add(1) }
	informer.AddKeyHandler(changed, changed)
	return s
}

// Name implements snapshot.Source.
func (s *Saved[T]) Name() string { return s.informer.Name() }

// Resource implements snapshot.Source.
func (s *Saved[T]) Resource() schema.GroupResource { return s.informer.Resource() }

// Changes implements snapshot.Source.
func (s *Saved[T]) Changes() uint64 { return s.changes.Load() }

// Save implements snapshot.Source.
func (s *Saved[T]) Save() ([]json.RawMessage, error) { return s.informer.Save() }

// Restore implements snapshot.Source. The saved objects are complete up to the known checkpoints.
func (s *Saved[T]) Restore(saved []json.RawMessage) error {
	if err := s.informer.Restore(saved); err != nil {
		return err
	}
	if r, ok := s.informer.Guard().(*reader); ok {
		r.restored()
	}
	return nil
}

// Lacks returns the shards of which an informer of a Cache has not reached a checkpoint, and since when.
func Lacks[T client.Object](informer *client.Informer[T], shards []string) map[string]time.Time {
	if r, ok := informer.Guard().(*reader); ok {
		return r.coverage.lacks(shards)
	}
	return nil
}

// readFrom describes the cache server of an informer for errors, also of tenants: without the reason of an outage.
func readFrom[T client.Object](informer *client.Informer[T]) string {
	r, ok := informer.Guard().(*reader)
	if !ok {
		return ""
	}
	outage := ""
	if since, why := informer.Unreachable(); why != nil {
		outage = ", unreachable since " + since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf(" (read from cache %q%s)", r.cache.name, outage)
}
