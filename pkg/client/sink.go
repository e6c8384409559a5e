package client

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// informerSink keeps what a server has in the store of an informer.
type informerSink[T Object] struct {
	*Informer[T]

	// part is what is taken of it; nil is all.
	part *part
	// seen is not nil while the complete state is put.
	seen map[Key]struct{}
}

func (s *informerSink[T]) begin() { s.seen = map[Key]struct{}{} }

// end removes what was not put.
func (s *informerSink[T]) end() {
	gone := s.store.keys(func(key Key, obj T) bool {
		_, ok := s.seen[key]
		return !ok && (s.part == nil || s.part.takes(obj))
	})
	for _, key := range gone {
		s.mu.Lock()
		if s.guard.Missing(key) {
			s.remove(key, nil)
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	s.guard.ListComplete()
	s.mu.Unlock()
	s.seen = nil
}

func (s *informerSink[T]) put(ctx context.Context, received runtime.Object) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	s.counts.events.Add(1)
	at, key := s.placeOf(obj), s.KeyOf(obj)
	// Whose hash is not that of a logical cluster is said even if another replica has it.
	if key.Cluster == "" && s.everywhere && !s.unnamed.Swap(true) {
		klog.FromContext(ctx).Error(errUnnamed, "Cannot tell objects of logical clusters apart", "informer", s.name, "object", key)
	}
	if !s.wants(ctx, at) {
		return nil
	}
	if s.options.Keep != nil && !s.options.Keep(obj) {
		s.drop(key, obj, at)
		return nil
	}
	if s.seen != nil {
		s.seen[key] = struct{}{}
	}
	news, version := event{place: at, key: key, uid: obj.GetUID(), version: obj.GetResourceVersion()}, s.guard.Version(obj)
	obj, err := s.prepare(obj)
	if err != nil {
		// One bad object must not stop the others.
		utilruntime.HandleErrorWithContext(ctx, err, "Dropped an object", "informer", s.name)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admits(s.part, news) && s.guard.Put(key, obj, news.version, version) {
		s.upsert(key, obj)
	}
	return nil
}

func (s *informerSink[T]) gone(ctx context.Context, received runtime.Object) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	s.counts.events.Add(1)
	if at := s.placeOf(obj); s.wants(ctx, at) {
		s.drop(s.KeyOf(obj), obj, at)
	}
	return nil
}

// drop removes an object whose last state is final, or that is not selected any more.
func (s *informerSink[T]) drop(key Key, final T, at place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := event{place: at, key: key, uid: final.GetUID(), version: final.GetResourceVersion(), gone: true}
	version := s.guard.Version(final)
	if !s.admits(s.part, e) || !s.guard.Delete(key, e.version, version) {
		return
	}
	if version != "" {
		final.SetResourceVersion(version)
	}
	s.remove(key, &final)
}

// placeOf returns where an object lies on the ring.
func (s *informerSink[T]) placeOf(obj metav1.Object) place {
	if s.part == nil {
		return place{}
	}
	key := s.part.covers.Load().key
	return place{key, key.Hash(obj)}
}

// wants reports whether the stream is to bring what is at a place, without the lock. What was
// not even asked for says that the server does not filter.
func (s *informerSink[T]) wants(ctx context.Context, at place) bool {
	if s.part == nil || s.part.covers.Load().has(at.key, at.hash) {
		return true
	}
	s.report.discarded.Add(1)
	if s.part.asked.key == at.key && !s.part.asked.has(at.key, at.hash) {
		s.report.learn(ctx, FilteredByClient, errNotFiltered)
	}
	return false
}

// errUnnamed is told while all else is well: what can be told apart is right.
var errUnnamed = fmt.Errorf("objects of all logical clusters come without the annotation %s, and those of one namespace and name are taken for one: "+
	"check that the address is that of a server with logical clusters, and that nothing on the way removes annotations", logicalcluster.AnnotationKey)
