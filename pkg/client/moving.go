package client

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// ChangingRanges is a RangeSource whose ranges can be set, all by the same key.
type ChangingRanges struct {
	mu      sync.Mutex
	ranges  Ranges
	changed chan struct{}
}

// NewChangingRanges returns a source with initial ranges.
func NewChangingRanges(ranges Ranges) *ChangingRanges {
	return &ChangingRanges{ranges: ranges, changed: make(chan struct{})}
}

// Ranges implements RangeSource.
func (c *ChangingRanges) Ranges() Ranges {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ranges
}

// Changed implements RangeSource.
func (c *ChangingRanges) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Set sets the ranges. Informers follow asynchronously.
func (c *ChangingRanges) Set(ranges Ranges) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ranges.Equal(ranges) {
		return
	}
	c.ranges = ranges
	close(c.changed)
	c.changed = make(chan struct{})
}

func (i *Informer[T]) followRanges(ctx context.Context) {
	for ctx.Err() == nil {
		i.followLoaded(ctx)
	}
}

// followLoaded follows the assigned ranges with one first stream, until it must be replaced.
func (i *Informer[T]) followLoaded(ctx context.Context) {
	h := i.rangeState
	changed := h.source.Changed()
	i.assign(h.source.Ranges())
	if i.nothingLoaded() {
		i.setResourceVersion("") // all assigned ranges are listed
		if i.nothingAssigned() {
			i.loadedCompletely()
			i.setError(nil)
			i.isCurrent(ctx)
			select {
			case <-ctx.Done():
			case <-changed:
			}
			return
		}
	}
	h.wakeUp() // more ranges may have been assigned since
	first := i.start(ctx, &i.connection, &h.loaded)
	second := &running{}
	defer func() {
		first.end()
		second.end()
		h.second.Store(nil)
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = h.source.Changed()
			i.assign(h.source.Ranges())
			if i.nothingLoaded() {
				return
			}
		case <-h.wake:
		case <-second.syncedChannel():
			if h.incoming.covers.Load().Empty() {
				break
			}
			first.end()
			second.end()
			i.merge(second.ResourceVersion())
			return
		}
		if i.mustRelist() {
			first.end()
			i.setResourceVersion("")
			return
		}
		if h.incoming.covers.Load().Empty() {
			second.end()
			second = &running{}
			h.second.Store(nil)
		}
		if missing := i.missing(); !missing.Empty() {
			second.end()
			second = i.load(ctx)
		}
	}
}

func (i *Informer[T]) nothingLoaded() bool { return i.rangeState.loaded.covers.Load().Empty() }

func (i *Informer[T]) nothingAssigned() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.rangeState.assigned.Empty()
}

func (i *Informer[T]) mustRelist() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.rangeState.relist
}

// merge makes the next first stream include the ranges of the second one, up to the version that it reached. Both
// have ended.
func (i *Informer[T]) merge(reached string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h, from := i.rangeState, i.ResourceVersion()
	held, came := *h.loaded.covers.Load(), *h.incoming.covers.Load()
	h.incoming.set(Ranges{})
	if from == "" || reached == "" || came.Empty() {
		return // everything, or the incoming ranges, are listed again
	}
	order, err := resourceversion.CompareResourceVersion(from, reached)
	switch {
	case err != nil: // the versions are from different servers
		i.setResourceVersion("")
		return
	case order < 0:
		h.floors = append(h.floors, floor{came, reached})
	case order > 0:
		h.floors = append(h.floors, floor{held, from})
		i.setResourceVersion(reached)
	}
	h.loaded.set(held.union(came))
}

type running struct {
	*connection
	cancel context.CancelFunc
	ended  chan struct{}
}

func (i *Informer[T]) start(ctx context.Context, c *connection, of *part) *running {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{c, cancel, make(chan struct{})}
	go func() {
		defer close(r.ended)
		c.follow(ctx, &informerSink[T]{informer: i, part: of})
	}()
	return r
}

func (i *Informer[T]) load(ctx context.Context) *running {
	c := newConnection(i.name+" (ranges that come)", i.source)
	c.selected, c.pagesOnly, c.filterReport, c.counts = i.selected, i.pagesOnly, i.filterReport, i.counts
	coming := &i.rangeState.incoming
	c.requestRanges = func(bool) Ranges {
		i.mu.Lock()
		defer i.mu.Unlock()
		coming.requested = *coming.covers.Load()
		return coming.requested
	}
	i.rangeState.second.Store(&c)
	return i.start(ctx, &c, coming)
}

func (r *running) end() {
	if r.connection != nil {
		r.cancel()
		<-r.ended
	}
}

// syncedChannel returns a channel that is closed when the stream has delivered its initial state, or nil if it does not
// run.
func (r *running) syncedChannel() <-chan struct{} {
	if r.connection == nil {
		return nil
	}
	return r.synced
}

// LastError returns the reason why the informer is not connected, or cannot load incoming ranges, or nil.
func (i *Informer[T]) LastError() error {
	if err := i.connection.LastError(); err != nil {
		return err
	}
	if i.rangeState != nil {
		if loading := i.rangeState.second.Load(); loading != nil && loading.LastError() != nil {
			return loading.LastError()
		}
	}
	if i.unnamed.Load() {
		return errUnnamed
	}
	return nil
}
