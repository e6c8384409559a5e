package client

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

type informerSink[T Object] struct {
	// informer is not embedded, because each of its methods would be compiled for each kind again.
	informer *Informer[T]

	// part is the accepted subset; nil accepts all.
	part *part
	// seen is not nil during a resync.
	seen map[Key]struct{}
}

func (s *informerSink[T]) begin() { s.seen = map[Key]struct{}{} }

// end removes the objects that were not put.
func (s *informerSink[T]) end() {
	deleted := s.informer.store.keys(func(key Key, obj T) bool {
		_, ok := s.seen[key]
		return !ok && (s.part == nil || s.part.covers.Load().Contains(obj))
	})
	for _, key := range deleted {
		s.informer.mu.Lock()
		if s.informer.guard.DropMissing(key) {
			s.informer.remove(key, nil)
		}
		s.informer.mu.Unlock()
	}
	s.informer.mu.Lock()
	s.informer.guard.ListComplete()
	s.informer.mu.Unlock()
	s.seen = nil
}

func (s *informerSink[T]) put(ctx context.Context, received runtime.Object) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	s.informer.counts.events.Add(1)
	at, key := s.positionOf(obj), s.informer.KeyOf(obj)
	// Reported for all objects, because without a logical cluster the hash may be wrong.
	if key.Cluster == "" && s.informer.allClusters && !s.informer.unnamed.Swap(true) {
		klog.FromContext(ctx).Error(errUnnamed, "Received an object without a logical cluster", "informer", s.informer.name, "object", key)
	}
	if !s.accept(ctx, at) {
		return nil
	}
	if s.informer.options.Keep != nil && !s.informer.options.Keep(obj) {
		s.drop(key, obj, at)
		return nil
	}
	if s.seen != nil {
		s.seen[key] = struct{}{}
	}
	change, version := event{position: at, key: key, uid: obj.GetUID(), version: obj.GetResourceVersion()}, s.informer.guard.Version(obj)
	obj, err := s.informer.prepare(obj)
	if err != nil {
		// One invalid object must not block the others.
		utilruntime.HandleErrorWithContext(ctx, err, "Dropped an object", "informer", s.informer.name)
		return nil
	}
	s.informer.mu.Lock()
	defer s.informer.mu.Unlock()
	if s.informer.admit(s.part, change) && s.informer.guard.Put(key, obj, change.version, version) {
		s.informer.upsert(key, obj)
	}
	return nil
}

func (s *informerSink[T]) delete(ctx context.Context, received runtime.Object) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	s.informer.counts.events.Add(1)
	if at := s.positionOf(obj); s.accept(ctx, at) {
		s.drop(s.informer.KeyOf(obj), obj, at)
	}
	return nil
}

// drop removes an object that was deleted or is no longer selected.
func (s *informerSink[T]) drop(key Key, final T, at position) {
	s.informer.mu.Lock()
	defer s.informer.mu.Unlock()
	e := event{position: at, key: key, uid: final.GetUID(), version: final.GetResourceVersion(), deleted: true}
	version := s.informer.guard.Version(final)
	if !s.informer.admit(s.part, e) || !s.informer.guard.Delete(key, e.version, version) {
		return
	}
	if version != "" {
		final.SetResourceVersion(version)
	}
	s.informer.remove(key, &final)
}

func (s *informerSink[T]) positionOf(obj metav1.Object) position {
	if s.part == nil {
		return position{}
	}
	key := s.part.covers.Load().key
	return position{key, key.Hash(obj)}
}

// accept reports whether the stream covers a position, or counts it as discarded. If the position was not requested
// either, it records that the server does not filter.
func (s *informerSink[T]) accept(ctx context.Context, at position) bool {
	if s.part == nil || s.part.covers.Load().has(at.key, at.hash) {
		return true
	}
	s.informer.filterReport.discarded.Add(1)
	if s.part.requested.key == at.key && !s.part.requested.has(at.key, at.hash) {
		s.informer.filterReport.set(ctx, FilteredByClient, errNotFiltered)
	}
	return false
}

// admit reports whether handlers must be notified of an event, or records that it is dropped, with the lock held.
func (i *Informer[T]) admit(p *part, e event) bool {
	if p == nil {
		return true
	}
	if !p.covers.Load().has(e.position.key, e.hash) {
		i.filterReport.discarded.Add(1)
		return false
	}
	return p != &i.rangeState.loaded || len(i.rangeState.floors) == 0 || !i.dropDelivered(e)
}

// dropDelivered drops an event if a stream that was merged into this one has delivered it, and reports whether it did.
//
// If the merged stream did not leave the object in the store, the object was deleted since. The deletion follows, and
// is also dropped. If none follows, the event is not an old one, e.g. because a virtual workspace sends an object that
// becomes visible with its old resourceVersion. Then everything is listed again.
func (i *Informer[T]) dropDelivered(e event) (dropped bool) {
	old := false
	for _, f := range i.rangeState.floors {
		order, err := resourceversion.CompareResourceVersion(e.version, f.version)
		old = old || err == nil && order <= 0 && f.ranges.has(e.position.key, e.hash)
	}
	i.passed(e.version)
	if !old {
		return false
	}
	if i.rangeState.unexplained == nil {
		i.rangeState.unexplained = map[types.UID]struct{}{}
	}
	if e.deleted {
		delete(i.rangeState.unexplained, e.uid)
	} else if obj, ok := i.store.get(e.key); !ok || obj.GetUID() != e.uid {
		i.rangeState.unexplained[e.uid] = struct{}{}
	}
	return true
}

// passed drops the floors below a version, with the lock held.
func (i *Informer[T]) passed(version string) {
	h := i.rangeState
	if len(h.floors) == 0 {
		return
	}
	h.floors = slices.DeleteFunc(h.floors, func(f floor) bool {
		order, err := resourceversion.CompareResourceVersion(version, f.version)
		return version != f.version && (err != nil || order >= 0)
	})
	if len(h.floors) == 0 && len(h.unexplained) > 0 {
		h.relist.Store(true)
		h.wakeUp()
	}
}

// errUnnamed is returned while the connection works: other objects are correct.
var errUnnamed = fmt.Errorf("objects in a watch of all logical clusters lack the annotation %s, so that those with the same namespace and name cannot be distinguished: "+
	"check that the server supports logical clusters, and that no proxy removes annotations", logicalcluster.AnnotationKey)
