package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

// listerWatcher is the client that a connection reads from.
type listerWatcher struct {
	list  func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error)
	watch func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// sink is told what a server has, on one goroutine.
type sink interface {
	// begin says that all is put that there is, until end: what is not has gone. It may
	// begin again before.
	begin()
	end()
	// put and gone fail for objects of another type.
	put(ctx context.Context, obj runtime.Object) error
	gone(ctx context.Context, obj runtime.Object) error
}

// connection is how a resource of a server is followed, and what is known of that.
type connection struct {
	name   string
	source listerWatcher
	// selected has the selectors, but that of shards.
	selected  metav1.ListOptions
	pagesOnly bool
	// asks returns the ranges that a connection which begins asks for, if there are any; anew
	// says that it gets the complete state. completed is told of the end of that, and
	// reached of versions up to which all has been seen.
	asks      func(anew bool) Ranges
	completed func()
	reached   func(resourceVersion string)
	// before is called before a complete state is asked for; it may be nil.
	before func(ctx context.Context) error
	report *report
	counts *counts

	synced     chan struct{}
	syncedOnce sync.Once
	onSynced   func()
	// current is set when all has been seen that the server had since this runs.
	current atomic.Bool
	state   state
	// broken tells of connections that have ended.
	broken chan struct{}
}

func newConnection(name string, source listerWatcher) connection {
	return connection{
		name: name, source: source, broken: make(chan struct{}, 1), synced: make(chan struct{}),
		report: newReport(name), counts: &counts{}, completed: func() {}, reached: func(string) {}, onSynced: func() {},
	}
}

// state is what a connection tells about itself.
type state struct {
	mu              sync.Mutex
	running         bool
	started         time.Time
	err             error
	since           time.Time
	broke           time.Time // when the last connection ended
	resourceVersion string
}

// Name returns the informer's name.
func (c *connection) Name() string { return c.name }

// HasSynced reports whether the informer has had the complete state once, and
// all handlers have been told of it.
func (c *connection) HasSynced() bool {
	select {
	case <-c.synced:
		return true
	default:
		return false
	}
}

// Synced returns a channel that is closed when HasSynced becomes true.
func (c *connection) Synced() <-chan struct{} { return c.synced }

// WaitForSync waits until the informer has synced. Its error says what has kept
// the informer from it.
func (c *connection) WaitForSync(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
	}
	if c.HasSynced() {
		return nil
	}
	if err := c.LastError(); err != nil {
		return fmt.Errorf("informer %s has not synced: %w", c.name, err)
	}
	return fmt.Errorf("informer %s has not synced: %w", c.name, context.Cause(ctx))
}

// Current reports whether the informer has had the complete state of its server since it
// runs, and not only what was known before.
func (c *connection) Current() bool { return c.current.Load() }

// LastError returns why the informer is not connected, or nil.
func (c *connection) LastError() error {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.err
}

// Away returns why the informer is not connected, and since when, or nil.
func (c *connection) Unreachable() (since time.Time, why error) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if c.state.err == nil {
		return time.Time{}, nil
	}
	return c.state.since, c.state.err
}

// stale returns for how long the connection has not had what its server has.
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

// ResourceVersion returns the resourceVersion up to which the informer has seen
// events; empty before it has synced.
func (c *connection) ResourceVersion() string {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.resourceVersion
}

// Disconnected returns a channel that gets something when a connection has ended or
// failed, for whatever reason, and LastError says why: a server may have been another one before and after.
// Breaks that nobody has received yet are one. It is for one receiver.
func (c *connection) Disconnected() <-chan struct{} { return c.broken }

// lastBreak returns when the last connection ended or failed, or zero if none has.
func (c *connection) lastBreak() time.Time {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.broke
}

func (c *connection) disconnected() {
	c.state.mu.Lock()
	c.state.broke = time.Now()
	c.state.mu.Unlock()
	select {
	case c.broken <- struct{}{}:
	default:
	}
}

func (c *connection) setResourceVersion(rv string) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.state.resourceVersion = rv
}

func (c *connection) setRunning(running bool) (was bool) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	was, c.state.running = c.state.running, running
	if !was {
		c.state.started = time.Now()
	}
	return was
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

// markSynced reports whether it was not synced before.
func (c *connection) markSynced() (first bool) {
	c.syncedOnce.Do(func() {
		close(c.synced)
		c.onSynced()
		first = true
	})
	return first
}

// sourceOf returns what an informer reads from with a client's methods.
func sourceOf[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error), watching func(context.Context, metav1.ListOptions) (watch.Interface, error)) listerWatcher {
	return listerWatcher{
		list:  func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return list(ctx, opts) },
		watch: watching,
	}
}
