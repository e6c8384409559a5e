package apibinding

import (
	"context"
	"sync"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// replacements are the schemas that bindings are about to bind. Bindings to the same schema do not block each other,
// because an export may have thousands, and compatibility does not depend on the binding. The zero value is ready to use.
type replacements struct {
	mu       sync.Mutex
	pending  map[identified]*replacement
	finished chan struct{} // closed when one of pending ends; nil if no binding waits
}

// identified is a resource with an identity: a wildcard request reads its objects with a single schema.
type identified struct {
	resource schema.GroupResource
	identity string
}

type replacement struct {
	schema   string // its UID
	bindings int
}

// start waits until no other schema is about to be bound for any of the resources, and blocks others until done is called.
func (s *replacements) start(ctx context.Context, resources []apisv1alpha2.BoundAPIResource) (done func(), err error) {
	if len(resources) == 0 {
		return func() {}, nil
	}
	for {
		finished := s.tryStart(resources)
		if finished == nil {
			return func() { s.finish(resources) }, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-finished:
		}
	}
}

// tryStart registers all resources, or returns a channel to wait for. A waiting binding registers none, which prevents deadlocks.
func (s *replacements) tryStart(resources []apisv1alpha2.BoundAPIResource) (finished <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range resources {
		if p := s.pending[identifiedOf(&resources[i])]; p != nil && p.schema != resources[i].Schema.UID {
			if s.finished == nil {
				s.finished = make(chan struct{})
			}
			return s.finished
		}
	}
	if s.pending == nil {
		s.pending = map[identified]*replacement{}
	}
	for i := range resources {
		key := identifiedOf(&resources[i])
		if s.pending[key] == nil {
			s.pending[key] = &replacement{schema: resources[i].Schema.UID}
		}
		s.pending[key].bindings++
	}
	return nil
}

func (s *replacements) finish(resources []apisv1alpha2.BoundAPIResource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range resources {
		key := identifiedOf(&resources[i])
		if s.pending[key].bindings--; s.pending[key].bindings == 0 {
			delete(s.pending, key)
		}
	}
	if s.finished != nil {
		close(s.finished)
		s.finished = nil
	}
}

func identifiedOf(r *apisv1alpha2.BoundAPIResource) identified {
	return identified{schema.GroupResource{Group: r.Group, Resource: r.Resource}, r.Schema.IdentityHash}
}
