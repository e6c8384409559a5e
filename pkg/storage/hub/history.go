package hub

import (
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// historyMin is how many events are kept regardless of their age and size.
	historyMin = 128
	// defaultMaxHistory is the default of Config.MaxHistory.
	defaultMaxHistory = 16384
	// historyBytes limits the total size of the objects, because a tenant may change objects of more than a
	// megabyte many times per second.
	//
	//reference:limit resource | events in memory, at least 128 | watches from earlier versions get 410
	historyBytes = 128 << 20
	// historyTime is how long events are kept for watches that resume, as in upstream's watch cache.
	historyTime = 75 * time.Second
)

// event is a change of an object.
type event struct {
	kind    watch.EventType
	key     string
	version uint64
	time    time.Time
	// obj is the new state or, in a deletion, the last state with a new version. previous is the state before, or nil.
	obj, previous runtime.Object
	// since is the version of the last state in a deletion.
	since  uint64
	hashes hashes
	// bytes is the approximate size of obj.
	bytes int64

	// current and removed are shared by watchers that receive the object, or its deletion.
	current, removed sharedObject
}

// bytesOf returns the approximate size of an object, or 0 if its type does not provide it.
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

// history is a ring buffer of the latest events. Events have consecutive numbers.
type history struct {
	max         int // events
	ring        []*event
	first, next uint64
	// floor is the version after which the history is complete, and floorTime is its time.
	floor     uint64
	floorTime time.Time
	// cut is the time at which an event was last dropped before it expired, because there were too
	// many events.
	cut time.Time
	// bytes is the total size of the events.
	bytes int64
}

// reset drops all events before a version.
func (l *history) reset(version uint64) {
	clear(l.ring)
	l.bytes = 0
	l.first, l.floor, l.floorTime, l.cut = l.next, version, time.Now(), time.Time{}
}

func (l *history) at(n uint64) *event { return l.ring[n%uint64(len(l.ring))] }

func (l *history) len() int { return int(l.next - l.first) } //nolint:gosec // at most max

// add appends an event.
func (l *history) add(e *event) {
	for l.len() >= historyMin {
		old := e.time.Sub(l.at(l.first).time) > historyTime
		if l.len() < l.max && l.bytes+e.bytes <= historyBytes && !old {
			break
		}
		if !old {
			l.cut = e.time
		}
		l.drop()
	}
	if l.len() == len(l.ring) {
		l.resize(max(historyMin, 2*len(l.ring)))
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

// expire drops expired events, and returns when to call it again, or zero for never.
func (l *history) expire(now time.Time) (again time.Time) {
	for l.len() > historyMin && now.Sub(l.at(l.first).time) > historyTime {
		l.drop()
	}
	if l.len() <= historyMin && len(l.ring) > historyMin {
		l.resize(historyMin)
	}
	if l.len() <= historyMin {
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

// after returns the number of the first event after a version, which must not be below the floor.
func (l *history) after(version uint64) uint64 {
	return l.search(func(e *event) bool { return e.version > version })
}

// search returns the number of the first event for which found is true, as for those after it.
func (l *history) search(found func(*event) bool) uint64 {
	n := sort.Search(l.len(), func(i int) bool { return found(l.at(l.first + uint64(i))) }) //nolint:gosec // not negative
	return l.first + uint64(n)                                                              //nolint:gosec // not negative
}

// before returns the version of the last event until a time, or 0 if it is not in the history any more.
func (l *history) before(t time.Time) uint64 {
	switch n := l.search(func(e *event) bool { return e.time.After(t) }); {
	case n > l.first:
		return l.at(n - 1).version
	case l.floorTime.After(t):
		return 0
	default:
		return l.floor
	}
}
