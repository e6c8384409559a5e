package client

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// useRanges configures an informer that does not run yet to load the objects in ranges.
func (i *Informer[T]) useRanges(source RangeSource) {
	i.rangeState = &rangeState{source: source, wake: make(chan struct{}, 1)}
	i.rangeState.loaded.set(Ranges{})
	i.rangeState.incoming.set(Ranges{})
	i.requestRanges, i.completed = i.requestLoaded, i.loadedCompletely
	i.reached = func(version string) { i.Pause(func() { i.passed(version) }) }
}

// LoadedRanges returns the ranges of which the informer has all objects.
func (i *Informer[T]) LoadedRanges() Ranges {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.rangeState == nil || !i.rangeState.complete {
		return Ranges{}
	}
	return *i.rangeState.loaded.covers.Load()
}

func (i *Informer[T]) requestLoaded(anew bool) Ranges {
	i.mu.Lock()
	defer i.mu.Unlock()
	h := i.rangeState
	if anew {
		h.complete, h.floors, h.unexplained = false, nil, nil
		h.relist.Store(false)
		h.loaded.set(h.assigned)
		h.incoming.set(Ranges{})
		h.wakeUp()
	}
	h.loaded.requested = *h.loaded.covers.Load()
	if len(h.loaded.requested.intervals) > hashrange.Most {
		h.loaded.requested = h.assigned // assigned has fewer intervals, and includes loaded
	}
	return h.loaded.requested
}

func (i *Informer[T]) loadedCompletely() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rangeState.complete = true
	i.rangeState.wakeUp()
}

// assign sets the assigned ranges and drops objects outside of them.
func (i *Informer[T]) assign(wanted Ranges) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h := i.rangeState
	h.assigned = wanted
	h.loaded.set(h.loaded.covers.Load().intersect(wanted))
	h.incoming.set(h.incoming.covers.Load().intersect(wanted))
	i.leave(wanted)
}

// missing returns the assigned ranges that are neither loaded nor incoming, if they can be loaded now.
func (i *Informer[T]) missing() Ranges {
	i.mu.Lock()
	defer i.mu.Unlock()
	h := i.rangeState
	if !h.complete || i.ResourceVersion() == "" || !h.incoming.covers.Load().Empty() {
		return Ranges{}
	}
	missing := h.assigned.minus(*h.loaded.covers.Load())
	if len(missing.intervals) > hashrange.Most {
		missing.intervals = missing.intervals[:hashrange.Most] // the remaining intervals follow
	}
	h.incoming.set(missing)
	return missing
}

// followLoaded follows the assigned ranges with one first stream, until it must be replaced.
func (i *Informer[T]) followLoaded(ctx context.Context) {
	h := i.rangeState
	changed := h.source.Changed()
	i.assign(h.source.Ranges())
	if h.loaded.covers.Load().Empty() {
		i.setResourceVersion("") // all assigned ranges are listed
		if h.assigned.Empty() {
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
	second := none
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
			if h.loaded.covers.Load().Empty() {
				return
			}
		case <-h.wake:
		case <-second.synced:
			if h.incoming.covers.Load().Empty() {
				break
			}
			first.end()
			second.end()
			i.merge(second.ResourceVersion())
			return
		}
		if h.relist.Load() {
			first.end()
			i.setResourceVersion("")
			return
		}
		if h.incoming.covers.Load().Empty() {
			second.end()
			second = none
			h.second.Store(nil)
		}
		if missing := i.missing(); !missing.Empty() {
			second.end()
			second = i.load(ctx)
		}
	}
}

// merge makes the next first stream include the ranges of the second one, which reached a version. Both have ended.
func (i *Informer[T]) merge(reached string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h, from := i.rangeState, i.ResourceVersion()
	held, incoming := *h.loaded.covers.Load(), *h.incoming.covers.Load()
	h.incoming.set(Ranges{})
	if from == "" || reached == "" || incoming.Empty() {
		return // everything, or the incoming ranges, are listed again
	}
	order, err := resourceversion.CompareResourceVersion(from, reached)
	switch {
	case err != nil: // the versions are from different servers
		i.setResourceVersion("")
		return
	case order < 0:
		h.floors = append(h.floors, floor{incoming, reached})
	case order > 0:
		h.floors = append(h.floors, floor{held, from})
		i.setResourceVersion(reached)
	}
	h.loaded.set(held.union(incoming))
}

type running struct {
	*connection
	end func()
}

// none does not run, and is never synced.
var none = &running{&connection{}, func() {}}

func (i *Informer[T]) start(ctx context.Context, c *connection, of *part) *running {
	ctx, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { c.follow(ctx, &informerSink[T]{informer: i, part: of}) })
	return &running{c, func() {
		cancel()
		ended.Wait()
	}}
}

func (i *Informer[T]) load(ctx context.Context) *running {
	c := newConnection(i.name+" (incoming ranges)", i.source)
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
