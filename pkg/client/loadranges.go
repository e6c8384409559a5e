package client

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// useRanges configures an informer that does not run yet to load the objects in ranges.
func (i *Informer[T]) useRanges(source RangeSource) {
	i.rangeState = &rangeState{source: source, wake: make(chan struct{}, 1)}
	i.rangeState.loaded.set(Ranges{})
	i.rangeState.incoming.set(Ranges{})
	i.requestRanges, i.completed, i.reached = i.requestLoaded, i.loadedCompletely, i.pass
}

// LoadedRanges returns the ranges of which the informer has all objects. Assigned ranges that are still being
// loaded are not included.
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
		h.complete, h.relist, h.floors, h.unexplained = false, false, nil, nil
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

// admits reports whether handlers must be notified of an event, with the lock held.
func (i *Informer[T]) admits(p *part, e event) bool {
	if p == nil {
		return true
	}
	if !p.covers.Load().has(e.position.key, e.hash) {
		i.filterReport.discarded.Add(1)
		return false
	}
	return p != &i.rangeState.loaded || len(i.rangeState.floors) == 0 || !i.delivered(e)
}

// delivered reports whether an event was delivered by a stream that was merged into this one.
//
// If the merged stream did not leave the object of the event in the store, the object was deleted in the meantime
// and its deletion follows, which is dropped, too. If no deletion follows, the event is not an old one, e.g.
// because a virtual workspace sends an object that becomes visible with its old resourceVersion. Then everything
// is listed again.
func (i *Informer[T]) delivered(e event) bool {
	old := false
	for _, f := range i.rangeState.floors {
		order, err := resourceversion.CompareResourceVersion(e.version, f.version)
		old = old || err == nil && order <= 0 && f.ranges.has(e.position.key, e.hash)
	}
	i.passed(e.version)
	if !old {
		return false
	}
	if i.rangeState.unexplained == nil {
		i.rangeState.unexplained = map[types.UID]struct{}{}
	}
	if e.deleted {
		delete(i.rangeState.unexplained, e.uid)
	} else if obj, ok := i.store.get(e.key); !ok || obj.GetUID() != e.uid {
		i.rangeState.unexplained[e.uid] = struct{}{}
	}
	return true
}

// pass records that all events up to a version were received.
func (i *Informer[T]) pass(version string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.passed(version)
}

// passed drops the floors below a version, with the lock held.
func (i *Informer[T]) passed(version string) {
	h := i.rangeState
	if len(h.floors) == 0 {
		return
	}
	var above []floor
	for _, f := range h.floors {
		if order, err := resourceversion.CompareResourceVersion(version, f.version); err == nil && order < 0 || version == f.version {
			above = append(above, f)
		}
	}
	if h.floors = above; len(above) == 0 && len(h.unexplained) > 0 {
		h.relist = true
		h.wakeUp()
	}
}
