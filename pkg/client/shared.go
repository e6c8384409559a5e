package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/tools/cache"
)

// AsShared returns the objects of one logical cluster as client-go's type, for libraries that need it. Its keys
// are namespace/name, and therefore of one logical cluster. The informer must be run by its owner. Running the
// returned informer waits until its stop channel is closed, after which its handlers are not called. There is no
// resync. Handlers are buffered. OnLeave does not call handlers: an object that leaves an informer with ranges is
// removed from the store, but not deleted.
//
// Each one costs a function call for each event of the informer: use it for few logical clusters.
func AsShared[T Object](informer *Informer[T], cluster logicalcluster.Name) cache.SharedIndexInformer {
	s := &sharedInformer[T]{
		informer: informer, cluster: cluster, stopped: make(chan struct{}),
		indexer: cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
	}
	// These cannot fail: the objects have metadata, and the index functions support their types.
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
	errOtherHandle = errors.New("the registration belongs to another informer")
	errShared      = errors.New("the informer is part of another one: configure that one instead")
)

type sharedInformer[T Object] struct {
	informer *Informer[T]
	cluster  logicalcluster.Name
	// store is the registration of the handler that fills indexer.
	indexer cache.Indexer
	store   *Registration
	stopped chan struct{}
	once    sync.Once
}

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

type sharedRegistration struct {
	*Registration
	name string
}

func (r sharedRegistration) HasSyncedChecker() cache.DoneChecker { return done{r.name, r.Synced()} }

type done struct {
	name string
	done <-chan struct{}
}

func (d done) Name() string          { return d.name }
func (d done) Done() <-chan struct{} { return d.done }

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

func (s *sharedInformer[T]) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandler(handler)
}

func (s *sharedInformer[T]) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandler(handler)
}

func (s *sharedInformer[T]) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	r, ok := handle.(sharedRegistration)
	if !ok {
		return errOtherHandle
	}
	r.Remove()
	return nil
}

func (s *sharedInformer[T]) GetStore() cache.Store     { return s.indexer }
func (s *sharedInformer[T]) GetIndexer() cache.Indexer { return s.indexer }
func (s *sharedInformer[T]) AddIndexers(indexers cache.Indexers) error {
	return s.indexer.AddIndexers(indexers)
}
func (s *sharedInformer[T]) GetController() cache.Controller { return s }

func (s *sharedInformer[T]) Run(stop <-chan struct{}) {
	<-stop
	s.store.Remove()
	s.once.Do(func() { close(s.stopped) })
}

func (s *sharedInformer[T]) RunWithContext(ctx context.Context) { s.Run(ctx.Done()) }
func (s *sharedInformer[T]) HasSynced() bool                    { return s.store.HasSynced() }
func (s *sharedInformer[T]) HasSyncedChecker() cache.DoneChecker {
	return done{s.name(), s.store.Synced()}
}
func (s *sharedInformer[T]) LastSyncResourceVersion() string                  { return s.informer.ResourceVersion() }
func (*sharedInformer[T]) SetWatchErrorHandler(cache.WatchErrorHandler) error { return errShared }
func (*sharedInformer[T]) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return errShared
}
func (*sharedInformer[T]) SetTransform(cache.TransformFunc) error { return errShared }
func (s *sharedInformer[T]) IsStopped() bool                      { return isClosed(s.stopped) }
