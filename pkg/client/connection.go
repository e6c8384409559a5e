package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

type listerWatcher struct {
	list  func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error)
	watch func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// sink is like Sink, but put and delete fail for objects of another type.
type sink interface {
	begin()
	end()
	put(ctx context.Context, obj runtime.Object) error
	delete(ctx context.Context, obj runtime.Object) error
}

// connection follows a resource of a server and records the state of the connection.
type connection struct {
	name   string
	source listerWatcher
	// selected contains the selectors except the shard selector.
	selected  metav1.ListOptions
	pagesOnly bool
	// requestRanges returns the ranges to request on a new connection, anew if it requests the complete state.
	// completed is called at the end of that, and reached with versions up to which all events were received.
	requestRanges func(anew bool) Ranges
	completed     func()
	reached       func(resourceVersion string)
	// before is called before the complete state is requested; it may be nil.
	before       func(ctx context.Context) error
	filterReport *filterReport
	counts       *counts

	synced     chan struct{}
	syncedOnce sync.Once
	onSynced   func()
	// current is set when the informer has received everything that the server had when Run was called.
	current atomic.Bool
	version atomic.Value // the resourceVersion, a string
	state   state
	broken  chan struct{}
}

func newConnection(name string, source listerWatcher) connection {
	return connection{
		name: name, source: source, broken: make(chan struct{}, 1), synced: make(chan struct{}),
		filterReport: &filterReport{name: name}, counts: &counts{}, completed: func() {}, reached: func(string) {}, onSynced: func() {},
	}
}

type state struct {
	mu             sync.Mutex
	running        bool
	started        time.Time
	err            error
	since          time.Time
	disconnectedAt time.Time // when the last connection ended
}

// Name returns the informer's name.
func (c *connection) Name() string { return c.name }

// HasSynced reports whether the complete state was received once and all handlers were notified of it.
func (c *connection) HasSynced() bool { return isClosed(c.synced) }

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// Synced returns a channel that is closed when HasSynced becomes true.
func (c *connection) Synced() <-chan struct{} { return c.synced }

// WaitForSync waits until the informer has synced. The error contains the reason why it has not.
func (c *connection) WaitForSync(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
	}
	if c.HasSynced() {
		return nil
	}
	return fmt.Errorf("informer %s has not synced: %w", c.name, cmp.Or(c.LastError(), context.Cause(ctx)))
}

// Current reports whether the complete state was received since Run was called. A restored informer is synced before.
func (c *connection) Current() bool { return c.current.Load() }

// LastError returns the reason why the informer is not connected, or nil.
func (c *connection) LastError() error {
	_, why := c.Unreachable()
	return why
}

// Unreachable returns since when and why the informer is not connected, or nil.
func (c *connection) Unreachable() (since time.Time, why error) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.err == nil {
		return time.Time{}, nil
	}
	return c.state.since, c.state.err
}

func (c *connection) stale() time.Duration {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	switch {
	case c.state.err != nil:
		return time.Since(c.state.since)
	case !c.current.Load():
		return time.Since(c.state.started)
	default:
		return 0
	}
}

// ResourceVersion returns the version up to which events were received; empty before the informer has synced.
func (c *connection) ResourceVersion() string {
	version, _ := c.version.Load().(string)
	return version
}

// Disconnected returns a channel for one receiver, with a value after connections have ended or failed (LastError).
func (c *connection) Disconnected() <-chan struct{} { return c.broken }

func (c *connection) lastBreak() time.Time {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.disconnectedAt
}

func (c *connection) disconnected() {
	c.state.mu.Lock()
	c.state.disconnectedAt = time.Now()
	c.state.mu.Unlock()
	select {
	case c.broken <- struct{}{}:
	default:
	}
}

func (c *connection) setResourceVersion(rv string) { c.version.Store(rv) }

// begin marks the informer as running until end is called. It fails if it runs already.
func (c *connection) begin() (end func(), err error) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.running {
		return nil, fmt.Errorf("informer %s is already running: run it only once", c.name)
	}
	c.state.running, c.state.started = true, time.Now()
	return func() {
		c.state.mu.Lock()
		defer c.state.mu.Unlock()
		c.state.running = false
	}, nil
}

func (c *connection) setError(err error) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.err == nil {
		c.state.since = time.Now()
	}
	c.state.err = err
}

func (c *connection) isCurrent(ctx context.Context) {
	c.current.Store(true)
	if c.markSynced() {
		klog.FromContext(ctx).V(2).Info("Informer synced", "informer", c.name)
	}
}

func (c *connection) markSynced() (first bool) {
	c.syncedOnce.Do(func() {
		close(c.synced)
		c.onSynced()
		first = true
	})
	return first
}

// Filtered is the component that selects the objects in the ranges of an informer.
type Filtered string

const (
	// FilteredByServer means that the server sends only objects in the ranges.
	FilteredByServer Filtered = "server"
	// FilteredByClient means that the server sends all objects and the informer discards the others.
	FilteredByClient Filtered = "client"
	// FilteredUnknown is the state before the first response, and of informers without ranges.
	FilteredUnknown Filtered = "unknown"
)

type filterReport struct {
	name      string
	by        atomic.Value
	logged    sync.Once
	discarded atomic.Uint64
}

func (r *filterReport) filtered() Filtered {
	by, _ := r.by.Load().(Filtered)
	return cmp.Or(by, FilteredUnknown)
}

func (r *filterReport) set(ctx context.Context, by Filtered, why error) {
	before := r.filtered()
	if r.by.Swap(by) == by {
		return
	}
	logger := klog.FromContext(ctx).WithValues("informer", r.name)
	if by != FilteredByClient {
		logger.V(2).Info("Filtering has changed", "before", before, "now", by)
		return
	}
	r.logged.Do(func() {
		logger.Info("Server does not filter by the ranges of the informer: each replica receives all objects, and discards those of others", "reason", why)
	})
}

var errNotFiltered = errors.New("the server does not support shard selectors, or its feature gate ShardedListAndWatch is disabled")
