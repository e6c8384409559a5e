package hub

import (
	"sync"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// historyIdle is how many events are kept while nobody watches.
	historyIdle = 128
	// historyMax is how many events are kept at most.
	historyMax = 16384
	// historyBytes is how large the objects of more than historyIdle events may be together: one
	// tenant may change objects of more than a megabyte many times a second.
	historyBytes = 128 << 20
	// historyTime is how long events are kept, and for how long after the last watch its
	// client may come back for them, as in upstream's watch cache.
	historyTime = 75 * time.Second
)

// event is a change of an object.
type event struct {
	kind    watch.EventType
	key     string
	version uint64
	time    time.Time
	// obj is the new state, or, in a deletion, the last one with the version of
	// the deletion; previous is the state before, or nil.
	obj, previous runtime.Object
	// since is the version of the last state, in a deletion.
	since  uint64
	hashes hashes
	// bytes is about what obj takes.
	bytes int64

	// sharing guards what watchers share.
	sharing       sync.Mutex
	current, gone weak.Pointer[cachingObject]
}

// bytesOf returns about what an object takes, of those that say so: typed ones, and packed custom resources.
func bytesOf(obj runtime.Object) int64 {
	switch sized := obj.(type) {
	case interface{ Size() int }:
		return int64(sized.Size())
	case interface{ Bytes() int64 }:
		return sized.Bytes()
	default:
		return 0
	}
}

// history is a ring of the latest events. Each has a number, one more than that
// of the event before.
type history struct {
	ring        []*event
	first, next uint64
	// floor is the version after which no event is missing, floorTime when that was.
	floor     uint64
	floorTime time.Time
	// cut is when one was forgotten last before its time, as there were too many.
	cut time.Time
	// bytes are those of the events.
	bytes int64
}

// reset forgets everything before a version.
func (l *history) reset(version uint64) {
	clear(l.ring)
	l.bytes = 0
	l.first, l.floor, l.floorTime, l.cut = l.next, version, time.Now(), time.Time{}
}

func (l *history) at(n uint64) *event { return l.ring[n%uint64(len(l.ring))] }

func (l *history) len() int { return int(l.next - l.first) } //nolint:gosec // at most historyMax

// add appends an event. watched reports whether anybody may come back for it.
func (l *history) add(e *event, watched bool) {
	limit := historyIdle
	if watched {
		limit = historyMax
	}
	for l.len() >= historyIdle {
		old := e.time.Sub(l.at(l.first).time) > historyTime
		if l.len() < limit && l.bytes+e.bytes <= historyBytes && !old {
			break
		}
		if !old {
			l.cut = e.time
		}
		l.drop()
	}
	if l.len() == len(l.ring) {
		l.resize(max(historyIdle, 2*len(l.ring)))
	}
	l.ring[l.next%uint64(len(l.ring))] = e
	l.bytes += e.bytes
	l.next++
}

func (l *history) drop() {
	slot := l.first % uint64(len(l.ring))
	l.floor, l.floorTime = l.ring[slot].version, l.ring[slot].time
	l.bytes -= l.ring[slot].bytes
	l.ring[slot] = nil
	l.first++
}

// expire forgets what is too old although nothing is added, and returns when to look again; the
// zero time is never.
func (l *history) expire(now time.Time) (again time.Time) {
	for l.len() > historyIdle && now.Sub(l.at(l.first).time) > historyTime {
		l.drop()
	}
	if l.len() <= historyIdle && len(l.ring) > historyIdle {
		l.resize(historyIdle)
	}
	if l.len() <= historyIdle {
		return time.Time{}
	}
	return l.at(l.first).time.Add(historyTime)
}

func (l *history) resize(size int) {
	ring := make([]*event, size)
	for n := l.first; n < l.next; n++ {
		ring[n%uint64(len(ring))] = l.at(n)
	}
	l.ring = ring
}

// after returns the number of the first event after a version, which must not
// be below the floor.
func (l *history) after(version uint64) uint64 {
	low, high := l.first, l.next
	for low < high {
		middle := low + (high-low)/2
		if l.at(middle).version > version {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// before returns the version of the last event until a time, or 0 if it is forgotten.
func (l *history) before(t time.Time) uint64 {
	low, high := l.first, l.next
	for low < high {
		middle := low + (high-low)/2
		if l.at(middle).time.After(t) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	switch {
	case low > l.first:
		return l.at(low - 1).version
	case l.floorTime.After(t):
		return 0
	default:
		return l.floor
	}
}
