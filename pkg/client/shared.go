package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/tools/cache"
)

// AsShared returns what an informer has of one logical cluster, for libraries that want client-go's
// type. Its keys are namespace/name, so that it must be of one tenant. Whoever has the informer
// runs it; running what is returned waits for its end, after which it is told of nothing. There
// is no resync. Handlers are buffered, and OnLeave is nothing to them: what an informer with
// ranges does not hold any more is not in the store, and no deletion.
//
// Each costs a function call for each event of the informer, of whatever logical cluster: for a
// few tenants.
func AsShared[T Object](informer *Informer[T], cluster logicalcluster.Name) cache.SharedIndexInformer {
	s := &sharedInformer[T]{
		informer: informer, cluster: cluster, stopped: make(chan struct{}),
		indexer: cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
	}
	// It cannot fail: the objects have metadata, and are of types that the indexes know.
	set := func(obj T) { _ = s.indexer.Add(obj) }
	remove := func(obj T) { _ = s.indexer.Delete(obj) }
	s.store = informer.AddEventHandler(s.ofCluster(Handler[T]{
		OnAdd:    func(obj T, _ bool) { set(obj) },
		OnUpdate: func(_, obj T) { set(obj) },
		OnDelete: func(last T, _ bool) { remove(last) },
		OnLeave:  func(last T, _ Leave) { remove(last) },
	}))
	return s
}

var (
	errStopped     = errors.New("the informer has stopped")
	errOtherHandle = errors.New("the registration is not one of this informer")
	errShared      = errors.New("the informer is a part of another one: set it there")
)

// sharedInformer is one tenant of an informer.
type sharedInformer[T Object] struct {
	informer *Informer[T]
	cluster  logicalcluster.Name
	// indexer has the objects, and store is what keeps it.
	indexer cache.Indexer
	store   *Registration
	stopped chan struct{}
	once    sync.Once
}

// ofCluster returns a handler that is told of the objects of the logical cluster only.
func (s *sharedInformer[T]) ofCluster(h Handler[T]) Handler[T] {
	is := func(obj T) bool { return logicalcluster.From(obj) == s.cluster && !s.IsStopped() }
	return Handler[T]{
		OnAdd: func(obj T, initial bool) {
			if is(obj) {
				h.OnAdd(obj, initial)
			}
		},
		OnUpdate: func(old, obj T) {
			if is(obj) {
				h.OnUpdate(old, obj)
			}
		},
		OnDelete: func(last T, tombstone bool) {
			if is(last) {
				h.OnDelete(last, tombstone)
			}
		},
		OnLeave: func(last T, why Leave) {
			if is(last) && h.OnLeave != nil {
				h.OnLeave(last, why)
			}
		},
	}
}

// sharedRegistration is a handler that was added.
type sharedRegistration struct {
	*Registration
	name string
}

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r sharedRegistration) HasSyncedChecker() cache.DoneChecker { return done{r.name, r.Synced()} }

// done implements cache.DoneChecker.
type done struct {
	name string
	done <-chan struct{}
}

// Name implements cache.DoneChecker.
func (d done) Name() string { return d.name }

// Done implements cache.DoneChecker.
func (d done) Done() <-chan struct{} { return d.done }

// AddEventHandler implements cache.SharedInformer.
func (s *sharedInformer[T]) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if s.IsStopped() {
		return nil, errStopped
	}
	r := s.informer.AddEventHandler(s.ofCluster(Handler[T]{
		OnAdd:    func(obj T, initial bool) { handler.OnAdd(obj, initial) },
		OnUpdate: func(old, obj T) { handler.OnUpdate(old, obj) },
		OnDelete: func(last T, tombstone bool) {
			if !tombstone {
				handler.OnDelete(last)
				return
			}
			key, _ := cache.MetaNamespaceKeyFunc(last)
			handler.OnDelete(cache.DeletedFinalStateUnknown{Key: key, Obj: last})
		},
	}), Buffered())
	return sharedRegistration{r, s.name()}, nil
}

func (s *sharedInformer[T]) name() string { return s.informer.Name() + " of " + s.cluster.String() }

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (s *sharedInformer[T]) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandler(handler)
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (s *sharedInformer[T]) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandler(handler)
}

// RemoveEventHandler implements cache.SharedInformer.
func (s *sharedInformer[T]) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	r, ok := handle.(sharedRegistration)
	if !ok {
		return errOtherHandle
	}
	r.Remove()
	return nil
}

// GetStore implements cache.SharedInformer.
func (s *sharedInformer[T]) GetStore() cache.Store { return s.indexer }

// GetIndexer implements cache.SharedIndexInformer.
func (s *sharedInformer[T]) GetIndexer() cache.Indexer { return s.indexer }

// AddIndexers implements cache.SharedIndexInformer.
func (s *sharedInformer[T]) AddIndexers(indexers cache.Indexers) error {
	return s.indexer.AddIndexers(indexers)
}

// GetController implements cache.SharedInformer.
func (s *sharedInformer[T]) GetController() cache.Controller { return s }

// Run implements cache.SharedInformer.
func (s *sharedInformer[T]) Run(stop <-chan struct{}) {
	<-stop
	s.store.Remove()
	s.once.Do(func() { close(s.stopped) })
}

// RunWithContext implements cache.SharedInformer.
func (s *sharedInformer[T]) RunWithContext(ctx context.Context) { s.Run(ctx.Done()) }

// HasSynced implements cache.SharedInformer.
func (s *sharedInformer[T]) HasSynced() bool { return s.store.HasSynced() }

// HasSyncedChecker implements cache.SharedInformer.
func (s *sharedInformer[T]) HasSyncedChecker() cache.DoneChecker {
	return done{s.name(), s.store.Synced()}
}

// LastSyncResourceVersion implements cache.SharedInformer.
func (s *sharedInformer[T]) LastSyncResourceVersion() string { return s.informer.ResourceVersion() }

// SetWatchErrorHandler implements cache.SharedInformer: it fails, as if the informer ran already.
func (*sharedInformer[T]) SetWatchErrorHandler(cache.WatchErrorHandler) error { return errShared }

// SetWatchErrorHandlerWithContext implements cache.SharedInformer, as SetWatchErrorHandler.
func (*sharedInformer[T]) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return errShared
}

// SetTransform implements cache.SharedInformer: it fails, as if the informer ran already.
func (*sharedInformer[T]) SetTransform(cache.TransformFunc) error { return errShared }

// IsStopped implements cache.SharedInformer.
func (s *sharedInformer[T]) IsStopped() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}
