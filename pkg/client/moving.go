package client

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// ChangingRanges is a RangeSource whose ranges can be set, of one key.
type ChangingRanges struct {
	mu      sync.Mutex
	ranges  Ranges
	changed chan struct{}
}

// NewChangingRanges returns ranges that can be set.
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

// Set sets the ranges. Informers follow a little later.
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

// followRanges follows what is wanted until ctx is done.
func (i *Informer[T]) followRanges(ctx context.Context) {
	for ctx.Err() == nil {
		i.followHeld(ctx)
	}
}

// followHeld follows the ranges with one first stream, until that has to be another one.
func (i *Informer[T]) followHeld(ctx context.Context) {
	h := i.holding
	changed := h.source.Changed()
	i.want(h.source.Ranges())
	if i.emptyHanded() {
		i.setResourceVersion("") // all that will be wanted is read anew
		if i.wantsNothing() {
			i.heldIsWhole()
			i.setError(nil)
			i.isCurrent(ctx)
			select {
			case <-ctx.Done():
			case <-changed:
			}
			return
		}
	}
	h.lookAgain() // there may be more to come since
	first := i.start(ctx, &i.connection, &h.held)
	second := &running{}
	defer func() {
		first.end()
		second.end()
		h.loading.Store(nil)
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = h.source.Changed()
			i.want(h.source.Ranges())
			if i.emptyHanded() {
				return
			}
		case <-h.look:
		case <-second.whole():
			if h.coming.covers.Load().Empty() {
				break
			}
			first.end()
			second.end()
			i.merge(second.ResourceVersion())
			return
		}
		if i.hasToReread() {
			first.end()
			i.setResourceVersion("")
			return
		}
		if h.coming.covers.Load().Empty() {
			second.end()
			second = &running{}
			h.loading.Store(nil)
		}
		if missing := i.missing(); !missing.Empty() {
			second.end()
			second = i.load(ctx)
		}
	}
}

// emptyHanded reports whether the first stream has nothing of what is wanted.
func (i *Informer[T]) emptyHanded() bool {
	return i.holding.held.covers.Load().Empty()
}

func (i *Informer[T]) wantsNothing() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.holding.wanted.Empty()
}

func (i *Informer[T]) hasToReread() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.holding.reread
}

// merge has the first stream, when it begins again, bring what the second one has brought up
// to a version. Both have ended.
func (i *Informer[T]) merge(reached string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h, from := i.holding, i.ResourceVersion()
	held, came := *h.held.covers.Load(), *h.coming.covers.Load()
	h.coming.set(Ranges{})
	if from == "" || reached == "" || came.Empty() {
		return // everything is read again, or what came is
	}
	order, err := resourceversion.CompareResourceVersion(from, reached)
	switch {
	case err != nil: // versions of more than one server
		i.setResourceVersion("")
		return
	case order < 0:
		h.floors = append(h.floors, floor{came, reached})
	case order > 0:
		h.floors = append(h.floors, floor{held, from})
		i.setResourceVersion(reached)
	}
	h.held.set(held.union(came))
}

// running is a stream that runs, or none.
type running struct {
	*connection
	cancel context.CancelFunc
	ended  chan struct{}
}

// start starts a stream that brings a part.
func (i *Informer[T]) start(ctx context.Context, c *connection, of *part) *running {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{c, cancel, make(chan struct{})}
	go func() {
		defer close(r.ended)
		c.follow(ctx, &informerSink[T]{Informer: i, part: of})
	}()
	return r
}

// load starts the second stream.
func (i *Informer[T]) load(ctx context.Context) *running {
	c := newConnection(i.name+" (ranges that come)", i.source)
	c.selected, c.pagesOnly, c.report, c.counts = i.selected, i.pagesOnly, i.report, i.counts
	coming := &i.holding.coming
	c.asks = func(bool) Ranges {
		i.mu.Lock()
		defer i.mu.Unlock()
		coming.asked = *coming.covers.Load()
		return coming.asked
	}
	i.holding.loading.Store(&c)
	return i.start(ctx, &c, coming)
}

// end ends the stream, and returns when it has ended.
func (r *running) end() {
	if r.connection != nil {
		r.cancel()
		<-r.ended
	}
}

// whole returns a channel that is closed when the stream has brought its initial state.
func (r *running) whole() <-chan struct{} {
	if r.connection == nil {
		return nil
	}
	return r.synced
}

// LastError returns why the informer is not connected, or cannot read the ranges that are to
// come, or nil.
func (i *Informer[T]) LastError() error {
	if err := i.connection.LastError(); err != nil {
		return err
	}
	if i.holding != nil {
		if loading := i.holding.loading.Load(); loading != nil && loading.LastError() != nil {
			return loading.LastError()
		}
	}
	if i.unnamed.Load() {
		return errUnnamed
	}
	return nil
}
