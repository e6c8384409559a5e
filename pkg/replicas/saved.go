package replicas

import (
	"encoding/json"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
)

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
