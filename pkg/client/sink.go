package client

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/equality"
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
	at, key := s.place(obj), s.KeyOf(obj)
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
	if at := s.place(obj); s.wants(ctx, at) {
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

// place returns where an object lies on the ring.
func (s *informerSink[T]) place(obj metav1.Object) place {
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

// prepare applies the options to an object that the server sent.
func (i *Informer[T]) prepare(obj T) (T, error) {
	if !i.options.KeepManagedFields && len(obj.GetManagedFields()) > 0 {
		obj.SetManagedFields(nil)
	}
	if version := i.guard.Version(obj); version != "" {
		obj.SetResourceVersion(version)
	}
	if i.options.Transform == nil {
		return obj, nil
	}
	transformed, err := i.options.Transform(obj)
	if err != nil {
		return obj, fmt.Errorf("cannot transform %s: %w", i.KeyOf(obj), err)
	}
	return transformed, nil
}

// upsert stores obj and tells the handlers, unless nothing changed, under the lock.
func (i *Informer[T]) upsert(key Key, obj T) {
	old, replaced := i.store.set(key, obj)
	same := replaced && old.GetUID() == obj.GetUID()
	// Of one version there are two contents where the server's data was restored
	// and has gone another way since.
	if same && old.GetResourceVersion() == obj.GetResourceVersion() && obj.GetResourceVersion() != "" && equality.Semantic.DeepEqual(old, obj) {
		return
	}
	i.notify(Change[T]{Key: key, Old: old, Had: replaced, New: obj, Has: true, Same: same, initial: !i.HasSynced()})
}

// remove forgets the object under key, under the lock. final is its last state where known;
// otherwise the deletion was missed.
func (i *Informer[T]) remove(key Key, final *T) {
	old, removed := i.store.remove(key)
	if !removed {
		if final == nil || i.options.Keep == nil || !i.options.Keep(*final) {
			return
		}
		old = *final // what selects it began to do so after the last event before
	}
	c := Change[T]{Key: key, Old: old, Had: true, last: old, tombstone: final == nil, unseen: !removed}
	if final != nil {
		c.last = *final
	}
	i.notify(c)
}

// leave forgets the objects that are not in ranges, under the lock.
func (i *Informer[T]) leave(ranges Ranges) {
	for _, key := range i.store.keys(func(_ Key, obj T) bool { return !ranges.Contains(obj) }) {
		if old, removed := i.store.remove(key); removed {
			i.notify(Change[T]{Key: key, Old: old, Had: true, last: old, left: RangeMoved})
		}
	}
}

// notify tells of a change of the store, under the lock.
func (i *Informer[T]) notify(c Change[T]) {
	i.handlers.tell(c)
	for _, f := range i.followers {
		f(c)
	}
}
