package mcprovider

import (
	"errors"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
)

// informerOf is the part of an informer in one logical cluster.
type informerOf struct {
	in   cacheOf
	kind kind
}

var _ ctrlcache.Informer = informerOf{}

var (
	errOtherHandle = errors.New("the registration is from another informer")
	errIndexers    = errors.New("the informer is shared by all logical clusters: add indexes by IndexField")
)

// registration is a registered handler.
type registration struct{ *listener }

// done reports when a handler has received all initial objects.
type done struct {
	name string
	done <-chan struct{}
}

// Name implements toolscache.DoneChecker.
func (d done) Name() string { return d.name }

// Done implements toolscache.DoneChecker.
func (d done) Done() <-chan struct{} { return d.done }

// HasSynced implements toolscache.ResourceEventHandlerRegistration.
func (r registration) HasSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

// HasSyncedChecker implements toolscache.ResourceEventHandlerRegistration.
func (r registration) HasSyncedChecker() toolscache.DoneChecker {
	return done{"a handler of " + r.cluster.String(), r.synced}
}

// AddEventHandler implements ctrlcache.Informer.
func (i informerOf) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	l := newListener(i.in.name, handler)
	i.kind.add(l)
	return registration{l}, nil
}

// AddEventHandlerWithResyncPeriod implements ctrlcache.Informer. There is no resync.
func (i informerOf) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions implements ctrlcache.Informer. There is no resync.
func (i informerOf) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// RemoveEventHandler implements ctrlcache.Informer.
func (i informerOf) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	r, ok := handle.(registration)
	if !ok {
		return errOtherHandle
	}
	i.kind.remove(r.listener)
	return nil
}

// AddIndexers implements ctrlcache.Informer. It fails, because ctrlcache.Informer has no method to read indexes.
func (informerOf) AddIndexers(toolscache.Indexers) error { return errIndexers }

// HasSynced implements ctrlcache.Informer.
func (i informerOf) HasSynced() bool { return i.kind.HasSynced() }

// HasSyncedChecker implements ctrlcache.Informer.
func (i informerOf) HasSyncedChecker() toolscache.DoneChecker {
	return done{i.kind.Name(), i.kind.syncedChannel()}
}

// IsStopped implements ctrlcache.Informer.
func (i informerOf) IsStopped() bool { return i.in.provider.stopped.Load() }
