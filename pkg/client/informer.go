package client

import (
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
)

// InformerOptions restrict the objects of an informer. The zero value selects all.
type InformerOptions[T Object] struct {
	// Namespace restricts a namespaced resource to one namespace.
	Namespace string
	// LabelSelector and FieldSelector restrict the objects.
	LabelSelector, FieldSelector string
	// Ranges are the parts of the objects to load, and may change while the informer runs; nil selects all. If the
	// server does not support shard selectors, the informer discards the other objects.
	Ranges RangeSource
	// Indexers are additional indexes, by name, for Informer.ByIndex.
	Indexers map[string]IndexFunc[T]
	// Transform changes each object before it is stored, e.g. to drop fields. It must not change name, namespace,
	// the annotation kcp.io/cluster, and the UID if Ranges are by UID.
	Transform func(obj T) (T, error)
	// Keep selects the objects to store, before Transform; nil selects all. An object that is no longer selected
	// counts as deleted. Keep is called at each event of the object. If its result depends on other state,
	// handlers are notified at the next event of the object, even if that is its deletion.
	Keep func(obj T) bool
	// KeepManagedFields keeps metadata.managedFields. They are dropped by default, because they often are half of
	// an object, and an update without them does not change them.
	KeepManagedFields bool
	// Name is used in logs and metrics; by default the resource and the logical cluster.
	Name string
	// DisableWatchList lists the initial state in pages instead of requesting it on the watch. This is also the
	// fallback if the server rejects or does not complete the latter.
	DisableWatchList bool
}

// KeyHandler returns a handler that calls f with the key of every object that is added, changed or deleted.
func (i *Informer[T]) KeyHandler(f func(Key)) Handler[T] {
	return Handler[T]{
		OnAdd:    func(obj T, _ bool) { f(i.KeyOf(obj)) },
		OnUpdate: func(_, obj T) { f(i.KeyOf(obj)) },
		OnDelete: func(last T, _ bool) { f(i.KeyOf(last)) },
	}
}

// Informer stores a copy of the objects of a resource, of one logical cluster or of all of a server, and notifies
// handlers of changes. Use Resource.Informer, NewMetadataInformer or NewDynamicInformer.
type Informer[T Object] struct {
	connection

	gvr     schema.GroupVersionResource
	sharded bool
	options InformerOptions[T]
	store   *store[T]

	// mu orders events and registrations of handlers. The informers of a Composite or Union share it.
	mu       *sync.Mutex
	handlers handlers[T]
	// followers are called with changes of the store, after the handlers.
	followers []func(Change[T])
	// syncedFollowers are called when all initial objects were delivered.
	syncedFollowers []func()

	// sourceAt returns the client of the same resource at another scope.
	sourceAt func(Scope) (listerWatcher, error)
	metrics  *metrics
	guard    Guard
	// rangeState is nil for informers without ranges.
	rangeState *rangeState
	// everywhere is set for all logical clusters, and unnamed when an object without a logical cluster was
	// received.
	everywhere bool
	unnamed    atomic.Bool
}

// Guard returns the guard of the informer, which Factory.WithGuard has made.
func (i *Informer[T]) Guard() Guard { return i.guard }

// Resource returns the resource of its objects.
func (i *Informer[T]) Resource() schema.GroupResource { return i.gvr.GroupResource() }

// KeyOf returns the key of obj in the informer.
func (i *Informer[T]) KeyOf(obj T) Key {
	key := KeyOf(obj)
	if i.sharded {
		key.Shard = obj.GetAnnotations()[request.ShardAnnotation]
	}
	return key
}

// AddEventHandler adds a handler, before or after the informer runs. It notifies the handler of all present
// objects before it returns, or soon afterwards if the handler is buffered. It must not be called from a handler.
func (i *Informer[T]) AddEventHandler(h Handler[T], options ...HandlerOption) *Registration {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.handlers.add(i.mu, h, options, i.HasSynced(), i.present)
}

// AddKeyHandler adds a handler that is called with the key of each object that is added, changed or deleted and,
// unless left is nil, of each object that leaves.
func (i *Informer[T]) AddKeyHandler(changed, left func(Key), options ...HandlerOption) *Registration {
	return i.AddEventHandler(Handler[T]{changedKey: changed, leftKey: left}, options...)
}

func (i *Informer[T]) present(visit func(Key, T) bool) {
	for _, obj := range i.store.list() {
		if !visit(i.KeyOf(obj), obj) {
			return
		}
	}
}

func (i *Informer[T]) notifySynced() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers.markInitialDelivered()
	for _, f := range i.syncedFollowers {
		f()
	}
}

// AddIndexers adds indexes of all present and future objects, before or after the informer runs. It fails, and
// adds none, if an index of that name exists.
func (i *Informer[T]) AddIndexers(indexers map[string]IndexFunc[T]) error {
	if err := i.store.addIndexers(indexers); err != nil {
		return fmt.Errorf("informer %s: %w", i.name, err)
	}
	return nil
}

// Pause calls f while no handler runs: the Lister then returns exactly what the handlers were notified of. It must
// not be called from a handler, and f must return soon.
func (i *Informer[T]) Pause(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

// Filtered returns the component that selects the objects in the ranges of the informer, according to the latest
// responses of the server.
func (i *Informer[T]) Filtered() Filtered { return i.filterReport.filtered() }

// Discarded returns the number of received objects and events outside of the ranges.
func (i *Informer[T]) Discarded() uint64 { return i.filterReport.discarded.Load() }

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

// upsert stores obj and notifies the handlers if it changed, with the lock held.
func (i *Informer[T]) upsert(key Key, obj T) {
	old, replaced := i.store.set(key, obj)
	same := replaced && old.GetUID() == obj.GetUID()
	// One version has different contents if the server's data was restored from a backup.
	if same && old.GetResourceVersion() == obj.GetResourceVersion() && obj.GetResourceVersion() != "" && equality.Semantic.DeepEqual(old, obj) {
		return
	}
	i.notify(Change[T]{Key: key, Old: old, Had: replaced, New: obj, Has: true, Same: same, initial: !i.HasSynced()})
}

// remove removes the object of key, with the lock held. final is its final state, or nil if the deletion was
// missed.
func (i *Informer[T]) remove(key Key, final *T) {
	old, removed := i.store.remove(key)
	if !removed {
		if final == nil || i.options.Keep == nil || !i.options.Keep(*final) {
			return
		}
		old = *final // it has been selected since its last event
	}
	c := Change[T]{Key: key, Old: old, Had: true, last: old, tombstone: final == nil, unseen: !removed}
	if final != nil {
		c.last = *final
	}
	i.notify(c)
}

// leave drops the objects that are not in ranges, with the lock held.
func (i *Informer[T]) leave(ranges Ranges) {
	for _, key := range i.store.keys(func(_ Key, obj T) bool { return !ranges.Contains(obj) }) {
		if old, removed := i.store.remove(key); removed {
			i.notify(Change[T]{Key: key, Old: old, Had: true, last: old, leave: RangeMoved})
		}
	}
}

// notify notifies handlers of a change of the store, with the lock held.
func (i *Informer[T]) notify(c Change[T]) {
	i.handlers.notify(c)
	for _, f := range i.followers {
		f(c)
	}
}
