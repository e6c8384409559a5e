package apibinding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// locksAnnotation is the APIBinding of each bound resource, as JSON: {"<resource>.<group>": {"n":
	// "<binding>"}}.
	//
	//reference:metadata LogicalCluster | APIBinding controller
	locksAnnotation = "internal.apis.kcp.io/resource-bindings"
	// maxLocksBytes allows about 2,000 resources. The limit for all annotations of an object is 256 KiB.
	//
	//reference:limit cluster | bound resources, in an annotation for about 2,000 of them | condition `BindingUpToDate` of the APIBinding
	maxLocksBytes = 128 << 10
)

// errTooMany is returned if the annotation would be too large.
var errTooMany = errors.New("too many resources are bound in the logical cluster")

// withLocks records the resources of a binding in a LogicalCluster. It returns nil if they are already recorded.
func withLocks(lc *corev1alpha1.LogicalCluster, binding string, resources []apisv1alpha2.BoundAPIResource) (*corev1alpha1.LogicalCluster, error) {
	type lock struct {
		Name string `json:"n,omitempty"`
	}
	var all map[string]json.RawMessage
	before := lc.Annotations[locksAnnotation]
	if before != "" {
		if err := json.Unmarshal([]byte(before), &all); err != nil {
			return nil, fmt.Errorf("annotation %s of the LogicalCluster: %w", locksAnnotation, err)
		}
	}
	if all == nil { // there is no annotation, or it is null
		all = map[string]json.RawMessage{}
	}
	maps.DeleteFunc(all, func(_ string, text json.RawMessage) bool {
		var l lock
		return json.Unmarshal(text, &l) == nil && l.Name == binding
	})
	own, err := json.Marshal(lock{binding})
	if err != nil {
		return nil, fmt.Errorf("encoding the locks of %s: %w", binding, err)
	}
	for i := range resources {
		all[resources[i].Resource+"."+resources[i].Group] = own
	}
	after := ""
	if len(all) > 0 {
		text, err := json.Marshal(all)
		if err != nil {
			return nil, fmt.Errorf("encoding the annotation %s: %w", locksAnnotation, err)
		}
		after = string(text)
	}
	if after == before {
		return nil, nil //nolint:nilnil // there is nothing to change
	}
	if len(after) > max(maxLocksBytes, len(before)) {
		return nil, errTooMany
	}
	lc = lc.DeepCopy()
	if after == "" {
		delete(lc.Annotations, locksAnnotation)
		return lc, nil
	}
	metav1.SetMetaDataAnnotation(&lc.ObjectMeta, locksAnnotation, after)
	return lc, nil
}

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
