package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
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

// prologue is what a watch does before it follows events. It returns the
// version from which to follow them, and false if the watch is over.
type prologue func(ctx context.Context, send func(watch.Event) bool) (version uint64, ok bool)

// stream is a watch with a prologue.
type stream struct {
	storage    *tenantStorage
	collection collection
	prologue   prologue

	result   chan watch.Event
	done     chan struct{}
	stopOnce sync.Once
}

func newStream(s *tenantStorage, c collection, p prologue) *stream {
	return &stream{storage: s, collection: c, prologue: p, result: make(chan watch.Event), done: make(chan struct{})}
}

func (w *stream) start(ctx context.Context) (watch.Interface, error) {
	if !w.storage.streams.start(func() { w.run(ctx) }) {
		return nil, apierrors.NewServiceUnavailable("the storage is closed")
	}
	return w, nil
}

// ResultChan implements watch.Interface.
func (w *stream) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *stream) Stop() { w.stopOnce.Do(func() { close(w.done) }) }

// run goes through the prologue, and then sends what the inner watch sends. The
// inner watch starts late, since it would be ended as too slow if nobody read
// from it; the watch cache keeps events for longer than that.
func (w *stream) run(ctx context.Context) {
	defer close(w.result)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	send := func(event watch.Event) bool { return w.send(ctx, event) }
	version, ok := w.prologue(ctx, send)
	if !ok {
		return
	}
	opts := w.collection.opts
	opts.SendInitialEvents, opts.ResourceVersionMatch = nil, ""
	opts.ResourceVersion = formatVersion(version)
	inner, err := w.storage.watcherFor(w.collection).Watch(ctx, w.collection.key, opts)
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

// send returns whether the event was sent.
func (w *stream) send(ctx context.Context, event watch.Event) bool {
	select {
	case w.result <- event:
		return true
	case <-w.done:
	case <-ctx.Done():
	case <-w.storage.streams.ended:
	}
	return false
}

// initialList lists the objects that a watch starts with, and returns the
// version of the list.
func (s *tenantStorage) initialList(ctx context.Context, c collection) (runtime.Object, uint64, error) {
	opts := c.opts
	opts.Predicate.Limit, opts.Predicate.Continue = 0, ""
	opts.SendInitialEvents = nil
	if c.opts.SendInitialEvents == nil {
		opts.ResourceVersion = "0"
	}
	opts.ResourceVersionMatch = ""
	if opts.ResourceVersion != "" {
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	c.opts = opts
	list := s.newListFunc()
	if err := s.getList(ctx, c, list); err != nil {
		return nil, 0, err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, 0, fmt.Errorf("list for initial events: %w", err)
	}
	version, err := s.Versioner().ParseResourceVersion(accessor.GetResourceVersion())
	if err != nil {
		return nil, 0, fmt.Errorf("resource version of the initial events: %w", err)
	}
	return list, version, nil
}

// initialEvents returns the prologue that sends what a watch of the hub starts
// with.
func (s *tenantStorage) initialEvents(c collection) prologue {
	return func(ctx context.Context, send func(watch.Event) bool) (uint64, bool) {
		version, each, err := s.initialState(ctx, c)
		if err != nil {
			if ctx.Err() == nil {
				send(errorEvent(err))
			}
			return 0, false
		}
		return version, s.sendInitial(each, version, c, send)
	}
}

// objects yields objects, until yield returns false.
type objects func(yield func(runtime.Object) bool) error

// initialState returns the objects that a watch starts with and their version,
// without copying the objects of a large collection.
func (s *tenantStorage) initialState(ctx context.Context, c collection) (uint64, objects, error) {
	state, err := s.hub.State(ctx, c.key, c.opts)
	if err != nil {
		return 0, nil, err
	}
	if state != nil {
		return state.Version, state.Each, nil
	}
	list, version, err := s.initialList(ctx, c)
	return version, itemsOf(list), err
}

// itemsOf returns the objects of a list.
func itemsOf(list runtime.Object) objects {
	return func(yield func(runtime.Object) bool) error {
		errStopped := errors.New("stopped")
		err := meta.EachListItem(list, func(obj runtime.Object) error {
			if !yield(obj) {
				return errStopped
			}
			return nil
		})
		if errors.Is(err, errStopped) {
			return nil
		}
		return err
	}
}

// sendInitial sends the objects that a watch starts with and the bookmark that
// ends them. It returns whether the watch goes on.
func (s *tenantStorage) sendInitial(each objects, version uint64, c collection, send func(watch.Event) bool) bool {
	stopped, sent := false, 0
	err := each(func(obj runtime.Object) bool {
		// The objects are the watch cache's.
		stopped = !send(watch.Event{Type: watch.Added, Object: obj.DeepCopyObject()})
		sent++
		return !stopped
	})
	if sent > 0 {
		metrics.InitCounter.WithLabelValues(s.named.Group, s.named.Resource).Add(float64(sent))
	}
	if stopped {
		return false
	}
	if err == nil && c.opts.SendInitialEvents != nil && c.opts.Predicate.AllowWatchBookmarks {
		var bookmark runtime.Object
		if bookmark, err = s.newBookmark(version, c); err == nil {
			return send(watch.Event{Type: watch.Bookmark, Object: bookmark})
		}
	}
	if err != nil {
		send(errorEvent(err))
		return false
	}
	return true
}

// newBookmark returns the object that marks the end of initial events.
func (s *tenantStorage) newBookmark(version uint64, c collection) (runtime.Object, error) {
	obj := s.newFunc()
	if err := s.Versioner().UpdateObject(obj, version); err != nil {
		return nil, fmt.Errorf("bookmark: %w", err)
	}
	if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
		return nil, fmt.Errorf("bookmark: %w", err)
	}
	if !isSharded(&c.opts.Predicate) {
		return obj, nil
	}
	return obj, annotateShardInfo(obj, c.opts.Predicate.ShardSelector.String())
}
