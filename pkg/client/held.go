package client

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// hold has an informer that does not run yet hold the objects in ranges.
func (i *Informer[T]) hold(source RangeSource) {
	i.holding = &holding{source: source, look: make(chan struct{}, 1)}
	i.holding.held.set(Ranges{})
	i.holding.coming.set(Ranges{})
	i.asks, i.completed, i.reached = i.asksHeld, i.heldIsWhole, i.pass
}

// Holds returns the ranges of which the informer has all objects. What it is to hold and still
// reads is not among them.
func (i *Informer[T]) LoadedRanges() Ranges {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.holding == nil || !i.holding.whole {
		return Ranges{}
	}
	return *i.holding.held.covers.Load()
}

// asksHeld is what a connection of the first stream asks for.
func (i *Informer[T]) asksHeld(anew bool) Ranges {
	i.mu.Lock()
	defer i.mu.Unlock()
	h := i.holding
	if anew {
		h.whole, h.reread, h.floors, h.doubtful = false, false, nil, nil
		h.held.set(h.wanted)
		h.coming.set(Ranges{})
		h.lookAgain()
	}
	h.held.asked = *h.held.covers.Load()
	if len(h.held.asked.intervals) > hashrange.Most {
		h.held.asked = h.wanted // which has fewer, and has all of it
	}
	return h.held.asked
}

func (i *Informer[T]) heldIsWhole() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.holding.whole = true
	i.holding.lookAgain()
}

// want has the informer hold what is wanted now: what is not leaves.
func (i *Informer[T]) want(wanted Ranges) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h := i.holding
	h.wanted = wanted
	h.held.set(h.held.covers.Load().intersect(wanted))
	h.coming.set(h.coming.covers.Load().intersect(wanted))
	i.leave(wanted)
}

// missing returns what is wanted, and neither held nor coming, if it is time to read it.
func (i *Informer[T]) missing() Ranges {
	i.mu.Lock()
	defer i.mu.Unlock()
	h := i.holding
	if !h.whole || i.ResourceVersion() == "" || !h.coming.covers.Load().Empty() {
		return Ranges{}
	}
	missing := h.wanted.minus(*h.held.covers.Load())
	if len(missing.intervals) > hashrange.Most {
		missing.intervals = missing.intervals[:hashrange.Most] // the others next
	}
	h.coming.set(missing)
	return missing
}

// admits reports whether an event is to be told, under the lock.
func (i *Informer[T]) admits(p *part, e event) bool {
	if p == nil {
		return true
	}
	if !p.covers.Load().has(e.place.key, e.hash) {
		i.report.discarded.Add(1)
		return false
	}
	return p != &i.holding.held || len(i.holding.floors) == 0 || !i.told(e)
}

// told reports whether an event was told by a stream that was merged.
//
// An event of an object that the other stream did not leave behind belongs to one that was
// deleted meanwhile, and its deletion follows, which is taken for told, too. If it does not
// follow, the event is none of the past: a view tells of an object that comes into it by a
// version that the object has had for long. Then everything is read again.
func (i *Informer[T]) told(e event) bool {
	told := false
	for _, f := range i.holding.floors {
		order, err := resourceversion.CompareResourceVersion(e.version, f.version)
		told = told || err == nil && order <= 0 && f.ranges.has(e.place.key, e.hash)
	}
	i.passed(e.version)
	if !told {
		return false
	}
	if i.holding.doubtful == nil {
		i.holding.doubtful = map[types.UID]struct{}{}
	}
	if e.gone {
		delete(i.holding.doubtful, e.uid)
	} else if obj, ok := i.store.get(e.key); !ok || obj.GetUID() != e.uid {
		i.holding.doubtful[e.uid] = struct{}{}
	}
	return true
}

// pass notes that all events up to a version have been seen.
func (i *Informer[T]) pass(version string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.passed(version)
}

// passed forgets the floors that a version is above, under the lock.
func (i *Informer[T]) passed(version string) {
	h := i.holding
	if len(h.floors) == 0 {
		return
	}
	var above []floor
	for _, f := range h.floors {
		if order, err := resourceversion.CompareResourceVersion(version, f.version); err == nil && order < 0 || version == f.version {
			above = append(above, f)
		}
	}
	if h.floors = above; len(above) == 0 && len(h.doubtful) > 0 {
		h.reread = true
		h.lookAgain()
	}
}
