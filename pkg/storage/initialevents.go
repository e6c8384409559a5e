package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// streams are the watches of a storage that have a goroutine of their own.
type streams struct {
	ended chan struct{}

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

func newStreams() *streams { return &streams{ended: make(chan struct{})} }

// start runs a stream, unless the storage is closed.
func (s *streams) start(run func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Go(run)
	return true
}

// end has all streams end, and starts no more.
func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	close(s.ended)
}

// wait waits until all streams have ended.
func (s *streams) wait() { s.running.Wait() }

// initialEventsWatch is a watch that first sends the objects of a list.
type initialEventsWatch struct {
	storage         *tenantStorage
	list            runtime.Object
	resourceVersion string
	bookmark        bool
	collection      collection

	result   chan watch.Event
	done     chan struct{}
	stopOnce sync.Once
}

// ResultChan implements watch.Interface.
func (w *initialEventsWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *initialEventsWatch) Stop() { w.stopOnce.Do(func() { close(w.done) }) }

// run sends the initial events, their end, and then what the inner watch
// sends. The inner watch starts late, since it would be ended as too slow if
// nobody read from it; the watch cache keeps events for longer than that.
func (w *initialEventsWatch) run(ctx context.Context) {
	defer close(w.result)
	if !w.sendInitial(ctx) {
		return
	}
	opts := w.collection.opts
	opts.SendInitialEvents, opts.ResourceVersionMatch = nil, ""
	opts.ResourceVersion = w.resourceVersion
	inner, err := w.storage.watches.Watch(ctx, w.collection.key, opts)
	if err != nil {
		w.send(ctx, errorEvent(err))
		return
	}
	defer inner.Stop()
	for {
		select {
		case event, ok := <-inner.ResultChan():
			if !ok || !w.send(ctx, event) {
				return
			}
		case <-w.done:
			return
		case <-w.storage.streams.ended:
			return
		}
	}
}

// sendInitial returns whether the watch goes on.
func (w *initialEventsWatch) sendInitial(ctx context.Context) bool {
	errStopped := errors.New("stopped")
	err := meta.EachListItem(w.list, func(obj runtime.Object) error {
		// The list's objects share memory with the watch cache.
		if !w.send(ctx, watch.Event{Type: watch.Added, Object: obj.DeepCopyObject()}) {
			return errStopped
		}
		return nil
	})
	w.list = nil // to be collected while the watch lasts
	if errors.Is(err, errStopped) {
		return false
	}
	if err != nil {
		w.send(ctx, errorEvent(err))
		return false
	}
	if !w.bookmark {
		return true
	}
	bookmark, err := w.storage.newBookmark(w.resourceVersion)
	if err != nil {
		w.send(ctx, errorEvent(err))
		return false
	}
	return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: bookmark})
}

// send returns whether the event was sent.
func (w *initialEventsWatch) send(ctx context.Context, event watch.Event) bool {
	select {
	case w.result <- event:
		return true
	case <-w.done:
	case <-ctx.Done():
	case <-w.storage.streams.ended:
	}
	return false
}

// newBookmark returns the object that marks the end of initial events.
func (s *tenantStorage) newBookmark(resourceVersion string) (runtime.Object, error) {
	rv, err := s.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil {
		return nil, fmt.Errorf("resource version of the initial events: %w", err)
	}
	obj := s.newFunc()
	if err := s.Versioner().UpdateObject(obj, rv); err != nil {
		return nil, fmt.Errorf("bookmark: %w", err)
	}
	return obj, storage.AnnotateInitialEventsEndBookmark(obj)
}
