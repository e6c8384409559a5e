package client

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// position is the position of an object on the ring of hashes.
type position struct {
	key  ShardKey
	hash uint64
}

// part is the subset of objects that one stream delivers. The parts of two streams do not overlap, so that no
// event is delivered twice and the events of each object are ordered.
type part struct {
	// requested are the ranges that the stream's connection requested; owned by the stream's goroutine.
	requested Ranges
	// covers are the ranges that are accepted. It is written with the informer's lock held.
	covers atomic.Pointer[Ranges]
}

func (p *part) set(r Ranges) { p.covers.Store(&r) }

// floor records that events of ranges up to a version were delivered by a stream that has ended.
type floor struct {
	ranges  Ranges
	version string
}

type event struct {
	position

	key     Key
	uid     types.UID
	version string
	deleted bool
}

// rangeState records which ranges an informer has loaded and how it loads others:
//
//	steady     one stream delivers the loaded ranges
//	+ range    a second stream delivers the incoming ranges: their initial state, and then their events
//	− range    objects leave immediately, and later events are discarded
//	merged     when the incoming ranges are complete, both streams end, and one for all ranges continues
//	           from the older version, without the events that the newer one has delivered (floors)
//
// If the first stream must list again, it lists all assigned ranges. After a failure the current step is repeated.
type rangeState struct {
	source           RangeSource
	loaded, incoming part
	// wake wakes followLoaded when there may be work.
	wake chan struct{}
	// second is the connection of the second stream.
	second atomic.Pointer[connection]
	// relist is set if the first stream must list everything again.
	relist atomic.Bool

	// The following fields are protected by the informer's lock.

	// assigned is written by the goroutine of followLoaded.
	assigned Ranges
	// complete is set when the first stream has delivered everything in the loaded ranges.
	complete bool
	floors   []floor
	// unexplained are objects with events that were dropped as delivered but are not in the store; see dropDelivered.
	unexplained map[types.UID]struct{}
}

func (h *rangeState) wakeUp() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}
