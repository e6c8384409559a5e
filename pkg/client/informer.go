package client

import (
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
)

// InformerOptions restrict and shape what an informer holds. The zero value
// holds everything.
type InformerOptions[T Object] struct {
	// Namespace restricts a namespaced resource to one namespace.
	Namespace string
	// LabelSelector and FieldSelector restrict the objects.
	LabelSelector, FieldSelector string
	// Ranges say which part of the objects to hold, and may change while the informer runs;
	// nil selects all. A server that does not know selectors of shards sends all, and the
	// informer discards the others.
	Ranges RangeSource
	// Indexers are additional indexes, by name, for Informer.ByIndex.
	Indexers map[string]IndexFunc[T]
	// Transform changes each object before it is stored; it may keep less of
	// it. It must not change name, namespace and annotation kcp.io/cluster, nor the UID where
	// Ranges are by that.
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
// is added, changed or deleted, and not of those that leave.
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

	// mu orders events and the adding of handlers. The informers of a View share
	// one.
	mu       *sync.Mutex
	handlers handlers[T]
	// followers are told of changes of the store after the handlers.
	followers []func(Change[T])
	// syncedFollowers are told when all that is initial has been told.
	syncedFollowers []func()

	// sourceAt returns the client of the same resource at another scope.
	sourceAt func(Scope) (listerWatcher, error)
	metrics  *metrics
	guard    Guard
	// holding is nil without ranges.
	holding *holding
	// everywhere is set for all logical clusters, and unnamed once an object came that does not
	// say of which it is.
	everywhere bool
	unnamed    atomic.Bool
}

// Guard returns what Factory.WithGuard has made for the informer, if anything.
func (i *Informer[T]) Guard() Guard { return i.guard }

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
// it of all objects that are already there before it returns, or, if it is buffered, a little
// later. It may not be called from a handler.
func (i *Informer[T]) AddEventHandler(h Handler[T], options ...HandlerOption) *Registration {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.handlers.add(i.mu, h, options, i.HasSynced(), i.present)
}

// AddKeyHandler adds a handler that is told the key of each object that is added, changed or
// deleted, and, unless left is nil, of those that leave.
func (i *Informer[T]) AddKeyHandler(changed, left func(Key), options ...HandlerOption) *Registration {
	return i.AddEventHandler(Handler[T]{keys: changed, left: left}, options...)
}

// present are the objects that there are, by key.
func (i *Informer[T]) present(visit func(Key, T) bool) {
	for _, obj := range i.store.list() {
		if !visit(i.KeyOf(obj), obj) {
			return
		}
	}
}

// tellSynced tells the handlers that all that is initial has been told.
func (i *Informer[T]) tellSynced() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers.toldInitial()
	for _, f := range i.syncedFollowers {
		f()
	}
}

// AddIndexers adds indexes, before or after the informer runs: when it returns, they have all
// objects. It fails, and adds none, if there is one of a name already.
func (i *Informer[T]) AddIndexers(indexers map[string]IndexFunc[T]) error {
	if err := i.store.addIndexers(indexers); err != nil {
		return fmt.Errorf("informer %s: %w", i.name, err)
	}
	return nil
}

// Pause calls f while no handler runs: what the Lister has then is what the
// handlers have been told. It may not be called from a handler, and f must return
// soon.
func (i *Informer[T]) Pause(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

// Filtered returns who selects the objects in the ranges of the informer, by what the server
// has said and done last.
func (i *Informer[T]) Filtered() Filtered { return i.report.filtered() }

// Discarded returns how many objects and events the informer was sent that are not in its
// ranges.
func (i *Informer[T]) Discarded() uint64 { return i.report.discarded.Load() }

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
