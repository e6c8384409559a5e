package client

import (
	"fmt"
	"iter"
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
	// Ranges are the parts of the objects to load, and may change while the informer runs; nil selects all.
	Ranges RangeSource
	// Indexers are additional indexes, by name, for Informer.ByIndex.
	Indexers map[string]IndexFunc[T]
	// Transform changes each object before it is stored, e.g. to drop fields. It must not change name, namespace,
	// the annotation kcp.io/cluster, and the UID if Ranges are by UID.
	Transform func(obj T) (T, error)
	// Keep selects the objects to store, before Transform; nil selects all. It is called for each event of an object.
	// An object that is no longer selected is treated as deleted. If its result depends on other state, handlers are
	// notified at the next event of the object, even if that is its deletion.
	Keep func(obj T) bool
	// KeepManagedFields keeps metadata.managedFields, often half of an object. Updates without them do not change them.
	KeepManagedFields bool
	// Name is used in logs and metrics; by default the resource and the logical cluster.
	Name string
	// DisableWatchList lists the initial state in pages instead of requesting it on the watch.
	DisableWatchList bool
}

// Informer stores a copy of the objects of a resource, of one logical cluster or of all of a server, and notifies
// handlers of changes. Use Resource.Informer, NewMetadataInformer or NewDynamicInformer.
type Informer[T Object] struct {
	connection
	handlers[T]

	gvr     schema.GroupVersionResource
	sharded bool
	options InformerOptions[T]
	store   *store[T]

	// followers are called with changes of the store, after the handlers.
	followers []func(Change[T])
	// syncedFollowers are called when all initial objects were delivered.
	syncedFollowers []func()

	// sourceAt returns the client of the same resource at another scope.
	sourceAt sourceAt
	metrics  *metrics
	guard    Guard
	// rangeState is nil for informers without ranges.
	rangeState *rangeState
	// allClusters is set for all logical clusters, and unnamed after an object without a logical cluster.
	allClusters bool
	unnamed     atomic.Bool
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

func (i *Informer[T]) present(visit func(Key, T) bool) {
	for _, obj := range i.store.list() {
		if !visit(i.KeyOf(obj), obj) {
			return
		}
	}
}

func (i *Informer[T]) deliveredInitial() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.notifySynced()
	for _, f := range i.syncedFollowers {
		f()
	}
}

// AddIndexers adds indexes of all present and future objects. It fails, and adds none, if a name exists.
func (i *Informer[T]) AddIndexers(indexers map[string]IndexFunc[T]) error {
	if err := i.store.addIndexers(indexers); err != nil {
		return fmt.Errorf("informer %s: %w", i.name, err)
	}
	return nil
}

// Filtered returns the component that selects the objects in the ranges, according to the latest responses.
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

// remove removes an object, with the lock held. final is its final state, or nil if the deletion was missed.
func (i *Informer[T]) remove(key Key, final *T) {
	old, removed := i.store.remove(key)
	if !removed {
		if final == nil || i.options.Keep == nil || !i.options.Keep(*final) {
			return
		}
		old = *final // it has been selected since its last event
	}
	c := Change[T]{Key: key, Old: old, Had: true, last: old, tombstone: final == nil, Unseen: !removed}
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

// Composite shows a main informer and other informers as one, e.g. with preferences among copies of an object.
// Union is for informers of equal rank.
type Composite[T Object] struct{ handlers handlers[T] }

// NewComposite returns a Composite that is synced when the main informer is, which may be part of other Composites and
// have handlers. changed is called with each change of its objects, and must notify handlers. visible yields the
// visible objects. Both are called with the lock held.
func NewComposite[T Object](main *Informer[T], changed func(Change[T]), visible iter.Seq2[Key, T]) *Composite[T] {
	main.mu.Lock()
	defer main.mu.Unlock()
	v := &Composite[T]{handlers: handlers[T]{informer: main.name, panics: main.panics, mu: main.mu, visible: visible, synced: main.handlers.synced}}
	main.syncedFollowers = append(main.syncedFollowers, v.handlers.notifySynced)
	main.followers = append(main.followers, changed)
	return v
}

// AddEventHandler is Informer.AddEventHandler, for the visible objects.
func (v *Composite[T]) AddEventHandler(h Handler[T], options ...HandlerOption) *Registration {
	return v.handlers.AddEventHandler(h, options...)
}

// Follow adds another informer, which must not have run and not be part of another Composite.
func (v *Composite[T]) Follow(informer *Informer[T], changed func(Change[T])) {
	informer.mu = v.handlers.mu
	informer.followers = append(informer.followers, changed)
}

// Notify notifies the handlers of a change. The lock must be held.
func (v *Composite[T]) Notify(c Change[T]) { v.handlers.notify(c) }

// Wait waits until buffered handlers were notified of all changes.
func (v *Composite[T]) Wait() { v.handlers.wait() }
