package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/shardplane/shardplane/pkg/request"
)

// InformerOptions restrict and shape what an informer holds. The zero value
// holds everything.
type InformerOptions[T Object] struct {
	// Namespace restricts a namespaced resource to one namespace.
	Namespace string
	// LabelSelector and FieldSelector restrict the objects.
	LabelSelector, FieldSelector string
	// ShardSelector restricts the objects to those whose hash lies in its
	// ranges: shardRange(object.metadata.uid, '0x…', '0x…') || …
	ShardSelector string
	// Indexers are additional indexes, by name, for Informer.ByIndex.
	Indexers map[string]IndexFunc[T]
	// Transform changes each object before it is stored; it may keep less of
	// it. It must not change name, namespace and annotation kcp.io/cluster.
	Transform func(obj T) (T, error)
	// Keep selects the objects to hold, before Transform; nil selects all. An
	// object that is not selected any more counts as deleted. It is asked at each event
	// of the object, and may answer by what changes elsewhere: handlers are told of the
	// next event then, also if that is the object's deletion.
	Keep func(obj T) bool
	// KeepManagedFields keeps metadata.managedFields. They are dropped by
	// default, since they often are half of an object, and a server takes an
	// update without them as one that leaves them alone.
	KeepManagedFields bool
	// Name is the informer's name in logs; the resource and the logical
	// cluster by default.
	Name string
	// DisableWatchList makes the informer list in pages instead of asking for
	// the initial state on its watch. It does so by itself where the server
	// refuses the latter or does not complete it.
	DisableWatchList bool
}

// KeyHandler returns a handler that calls f with the key of every object that
// is added, changed or deleted.
func (i *Informer[T]) KeyHandler(f func(Key)) Handler[T] {
	return Handler[T]{
		OnAdd:    func(obj T, _ bool) { f(i.KeyOf(obj)) },
		OnUpdate: func(_, obj T) { f(i.KeyOf(obj)) },
		OnDelete: func(last T, _ bool) { f(i.KeyOf(last)) },
	}
}

// Informer keeps a copy of a resource's objects, of one logical cluster or of
// all of a server, and tells handlers about changes. Make one with
// Resource.Informer, NewMetadataInformer or NewDynamicInformer.
type Informer[T Object] struct {
	connection

	gvr     schema.GroupVersionResource
	sharded bool
	options InformerOptions[T]
	store   *store[T]
	// changes counts the changes of the store.
	changes atomic.Uint64

	// mu orders events and the adding of handlers. The informers of a Dual share
	// one.
	mu       *sync.Mutex
	handlers handlers[T]
	// followers are told of changes of the store after the handlers.
	followers []func(change[T])
}

func newInformer[T Object](gvr schema.GroupVersionResource, scope Scope, source listerWatcher, options InformerOptions[T]) *Informer[T] {
	name := options.Name
	if name == "" {
		name = gvr.GroupResource().String() + "@" + scope.String()
	}
	i := &Informer[T]{
		connection: newConnection(name, source),
		gvr:        gvr,
		sharded:    scope.factory.sharded,
		options:    options,
		store:      newStore(options.Indexers),
		mu:         &sync.Mutex{},
	}
	i.pagesOnly = options.DisableWatchList
	i.selected = metav1.ListOptions{LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector, ShardSelector: options.ShardSelector}
	return i
}

// Run follows the resource until ctx is done and everything it started has
// ended. It fails only if the informer runs already.
func (i *Informer[T]) Run(ctx context.Context) error {
	return i.run(ctx, &informerSink[T]{Informer: i})
}

// Resource returns the resource of its objects.
func (i *Informer[T]) Resource() schema.GroupResource { return i.gvr.GroupResource() }

// KeyOf returns the key under which the informer keeps obj.
func (i *Informer[T]) KeyOf(obj T) Key {
	key := KeyOf(obj)
	if i.sharded {
		key.Shard = obj.GetAnnotations()[request.ShardAnnotation]
	}
	return key
}

// AddEventHandler adds a handler, before or after the informer runs, and tells
// it of all objects that are already there before it returns. The function it
// returns removes the handler. Neither may be called from a handler.
func (i *Informer[T]) AddEventHandler(h Handler[T]) (remove func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.handlers.add(i.mu, h, i.store.list)
}

// Pause calls f while no handler runs: what the Lister has then is what the
// handlers have been told. It may not be called from a handler, and f must return
// soon.
func (i *Informer[T]) Pause(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

// prepare applies the options to an object that the server sent.
func (i *Informer[T]) prepare(obj T) (T, error) {
	if !i.options.KeepManagedFields && len(obj.GetManagedFields()) > 0 {
		obj.SetManagedFields(nil)
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

// upsert stores obj and tells the handlers, unless nothing changed.
func (i *Informer[T]) upsert(key Key, obj T) {
	i.mu.Lock()
	defer i.mu.Unlock()
	old, replaced := i.store.set(key, obj)
	same := replaced && old.GetUID() == obj.GetUID()
	// Of one version there are two contents where the server's data was restored
	// and has gone another way since.
	if same && old.GetResourceVersion() == obj.GetResourceVersion() && obj.GetResourceVersion() != "" && equality.Semantic.DeepEqual(old, obj) {
		return
	}
	i.notify(change[T]{key: key, old: old, had: replaced, obj: obj, has: true, same: same, initial: !i.HasSynced()})
}

// remove forgets the object under key. final is its last state where known;
// otherwise the deletion was missed.
func (i *Informer[T]) remove(key Key, final *T) {
	i.mu.Lock()
	defer i.mu.Unlock()
	old, removed := i.store.remove(key)
	if !removed {
		if final == nil || i.options.Keep == nil || !i.options.Keep(*final) {
			return
		}
		old = *final // what selects it began to do so after the last event before
	}
	c := change[T]{key: key, old: old, had: true, last: old, tombstone: final == nil}
	if final != nil {
		c.last = *final
	}
	i.notify(c)
}

// notify tells of a change of the store, under the lock.
func (i *Informer[T]) notify(c change[T]) {
	i.changes.Add(1)
	i.handlers.tell(c)
	for _, f := range i.followers {
		f(c)
	}
}

// prune removes what is not in keep: the complete state of the server.
func (i *Informer[T]) prune(keep map[Key]struct{}) {
	for _, key := range i.store.keysExcept(keep) {
		i.remove(key, nil)
	}
}

// informerSink keeps what a server has in the store of an informer.
type informerSink[T Object] struct {
	*Informer[T]
	// seen is not nil while the complete state is put.
	seen map[Key]struct{}
}

func (s *informerSink[T]) begin() { s.seen = map[Key]struct{}{} }

func (s *informerSink[T]) end() {
	s.prune(s.seen)
	s.seen = nil
}

func (s *informerSink[T]) put(ctx context.Context, received runtime.Object) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	key := s.KeyOf(obj)
	if s.options.Keep != nil && !s.options.Keep(obj) {
		s.remove(key, &obj)
		return nil
	}
	if s.seen != nil {
		s.seen[key] = struct{}{}
	}
	obj, err := s.prepare(obj)
	if err != nil {
		// One bad object must not stop the others.
		utilruntime.HandleErrorWithContext(ctx, err, "Dropped an object", "informer", s.name)
		return nil
	}
	s.upsert(key, obj)
	return nil
}

func (s *informerSink[T]) gone(received runtime.Object) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	s.remove(s.KeyOf(obj), &obj)
	return nil
}
