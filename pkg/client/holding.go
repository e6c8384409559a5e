package client

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// place is where an object lies on the ring.
type place struct {
	key  ShardKey
	hash uint64
}

// part is what one stream brings of the objects that an informer holds. What two streams take
// has nothing in common, so that no event is told twice, and each object has one order.
type part struct {
	// asked is what the stream's connection has asked for; the stream's goroutine has it.
	asked Ranges
	// covers is what is taken of that. It is written under the informer's lock.
	covers atomic.Pointer[Ranges]
}

func (p *part) takes(obj Object) bool { return p.covers.Load().Contains(obj) }

func (p *part) set(r Ranges) { p.covers.Store(&r) }

// floor says that events of ranges up to a version have been told, by a stream that is no more.
type floor struct {
	ranges  Ranges
	version string
}

// event is what a stream brings of an object.
type event struct {
	place

	key     Key
	uid     types.UID
	version string
	gone    bool
}

// holding is which objects an informer with ranges holds, and how it comes to others:
//
//	steady     one stream brings what is held
//	+ range    a second one brings what is coming: its initial state, and then its events
//	− range    what is not wanted any more leaves at once, and later events of it are discarded
//	merged     what came is complete: both streams end where they are, and one for all goes on
//	           from the older version, without what the younger one had told (floors)
//
// Where the first stream has to read everything again it reads all that is wanted, and there is
// nothing to come beside it. A break repeats the step that it hits.
type holding struct {
	source RangeSource
	held   part
	coming part
	// look tells who follows the ranges that what there is to do may have changed.
	look chan struct{}
	// loading is the connection of the second stream.
	loading atomic.Pointer[connection]

	// Under the informer's lock:

	wanted Ranges
	// whole says that the first stream has brought all that is held.
	whole  bool
	floors []floor
	// doubtful are objects whose events were taken for told and that nobody has told of; see
	// told.
	doubtful map[types.UID]struct{}
	// reread says that the first stream has to read everything again.
	reread bool
}

func (h *holding) lookAgain() {
	select {
	case h.look <- struct{}{}:
	default:
	}
}
