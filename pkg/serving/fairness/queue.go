package fairness

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// ownPauses is how many requests of a flow may be paused regardless of other flows.
const ownPauses = 4

var (
	errQueueFull = errors.New("too many requests are queued for this logical cluster")
	errTimeout   = errors.New("the request timed out in the queue")
)

// Limits are the limits of a Queue.
type Limits struct {
	// Seats is the total number of seats, and FlowSeats that of each flow.
	Seats, FlowSeats int
	// AloneSeats is FlowSeats, if more, while no other logical cluster sends requests.
	AloneSeats int
	// ThrottleFactor determines how long a flow with waiting requests is throttled after a request during
	// contention, as a multiple of the request's duration.
	ThrottleFactor float64
	// Waiting is the maximum number of waiting requests, and FlowWaiting that of each flow.
	Waiting, FlowWaiting int
	// Paused is the maximum number of paused requests; 0 means no limit. A flow may have ownPauses in any case, and
	// at most FlowWaiting.
	Paused int
}

const initialEstimate = 5 * time.Millisecond

// Queue implements start-time fair queueing. The virtual time of a flow is the sum of its work in seats times seconds,
// and the waiting flow with the lowest one is next. The cost of a request is estimated at its start, and corrected at
// its end. An idle flow starts at the virtual time of the queue, without credit. Within a flow, users take turns.
type Queue struct {
	limits         Limits
	clock          clock.WithDelayedExecution
	pausedRequests prometheus.Gauge

	mu                     sync.Mutex
	active                 activity
	inUse, waiting, paused int
	// now is the virtual time of the queue: that of the flow that was last dispatched.
	now   float64
	flows map[FlowKey]*flow
	// held are flows with requests that wait until fewer requests are paused.
	held map[*flow]struct{}
	// kept is the number of flows after the last cleanup.
	kept int
	// ready are the flows with waiting requests that may start by their own limits, by virtual time.
	ready flowHeap
}

// NewQueue returns a queue. The numbers of seats and of waiting requests must be positive.
func NewQueue(limits Limits, c clock.WithDelayedExecution, pausedRequests prometheus.Gauge) *Queue {
	return &Queue{limits: limits, clock: c, pausedRequests: pausedRequests, flows: map[FlowKey]*flow{}, held: map[*flow]struct{}{}}
}

// Acquire waits for the given number of seats. noted is called when the request starts and stops
// waiting. The caller must release the Seat.
func (q *Queue) Acquire(ctx context.Context, key FlowKey, user string, seats int, noted func(waits bool)) (*Seat, error) {
	seats = max(1, min(seats, q.limits.FlowSeats, q.limits.Seats))
	t, err := q.enqueue(key, user, seats)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.granted:
	default:
		noted(true)
		defer noted(false)
		select {
		case <-t.granted:
		case <-ctx.Done():
			if q.leave(t) {
				return nil, errTimeout
			}
		}
	}
	return &Seat{queue: q, queued: t}, nil
}

// Seat is held by a request that executes.
type Seat struct {
	queue  *Queue
	queued *queuedRequest
}

// Release returns the seat when the request has ended. extra is its additional cost in seats times seconds.
func (s *Seat) Release(extra float64) { s.queue.release(s.queued, extra) }

func (q *Queue) enqueue(key FlowKey, user string, seats int) (*queuedRequest, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.active.saw(key.Cluster, q.clock.Now())
	f := q.flows[key]
	if f == nil {
		f = &flow{key: key, index: -1, mean: initialEstimate.Seconds()}
		q.flows[key] = f
	}
	q.catchUp(f)
	full := q.full(f, user)
	t := &queuedRequest{flow: f, seats: seats, granted: make(chan struct{})}
	f.push(user, t)
	q.waiting++
	q.update(f)
	q.dispatch()
	if full && !t.started {
		q.withdraw(t)
		return nil, errQueueFull
	}
	return t, nil
}

// catchUp sets a flow without executing and waiting requests to the current virtual time.
// Therefore, a flow cannot accumulate credit, not even while its requests are paused.
func (q *Queue) catchUp(f *flow) {
	if f.inUse == 0 && !f.wants() {
		f.at = max(f.at, q.now)
	}
}

// full reports whether a request of user in the flow must not wait. A flow, and a user of it, may
// use part of the remaining capacity but never all of it, so that others can still wait.
func (q *Queue) full(f *flow, user string) bool {
	capacity := min(q.limits.FlowWaiting, q.limits.Waiting-q.waiting)
	return f.waiting >= capacity || f.waitingOf(user) >= max(1, capacity-f.waiting)
}

func (q *Queue) leave(t *queuedRequest) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.started {
		return false
	}
	q.withdraw(t)
	q.dispatch() // it may have blocked others
	return true
}

func (q *Queue) withdraw(t *queuedRequest) {
	t.flow.remove(t)
	q.waiting--
	q.update(t.flow)
	q.dropIdle(t.flow)
}

func (q *Queue) release(t *queuedRequest, extra float64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endWait(t)
	if t.pausing {
		q.endPause(t)
	}
	t.released = true
	f, seats := t.flow, float64(t.seats)
	took := (q.clock.Since(t.since) - t.paused).Seconds()
	f.at += seats*took + extra - t.estimated
	const weight = 0.2
	f.mean += weight * (took + extra/seats - f.mean)
	f.inUse -= t.seats
	q.inUse -= t.seats
	q.throttle(f, took)
	q.update(f)
	q.dropIdle(f)
	q.dispatch()
}

func (q *Queue) dispatch() {
	for len(q.ready) > 0 {
		f := q.ready[0]
		if q.inUse > 0 && q.inUse+f.head().seats > q.limits.Seats {
			// Smaller requests must not starve it.
			return
		}
		q.now = max(q.now, f.at)
		if len(f.returning) > 0 {
			t := f.returning[0]
			q.endPause(t)
			q.endWait(t)
			continue
		}
		t := f.pop()
		q.waiting--
		t.estimated = float64(t.seats) * f.mean
		f.at += t.estimated
		f.inUse += t.seats
		q.inUse += t.seats
		t.started, t.since = true, q.clock.Now()
		q.update(f)
		close(t.granted)
	}
}

func (q *Queue) update(f *flow) {
	if f.waiting == 0 {
		delete(q.held, f)
	}
	ready := (len(f.returning) > 0 || f.waiting > 0 && q.admitPause(f)) && f.throttledUntil.IsZero() && (f.inUse == 0 || f.inUse+f.head().seats <= q.seatsOf(f))
	switch {
	case ready && f.index < 0:
		heap.Push(&q.ready, f)
	case ready:
		heap.Fix(&q.ready, f.index)
	case f.index >= 0:
		heap.Remove(&q.ready, f.index)
	}
}

// dropIdle removes idle flows that are not ahead of the queue's virtual time.
func (q *Queue) dropIdle(f *flow) {
	if q.inUse == 0 && q.waiting == 0 && q.paused == 0 {
		clear(q.flows) // there are no other flows
		q.kept = 0
		return
	}
	if f.idle() && f.at <= q.now {
		delete(q.flows, f.key)
		return
	}
	const some = 64
	if len(q.flows) <= 2*q.kept+some {
		return
	}
	for key, f := range q.flows {
		if f.idle() && f.at <= q.now {
			delete(q.flows, key)
		}
	}
	q.kept = len(q.flows)
}

func (q *Queue) seatsOf(f *flow) int {
	if q.limits.AloneSeats > q.limits.FlowSeats && !q.active.othersThan(f.key.Cluster, q.clock.Now()) {
		return q.limits.AloneSeats
	}
	return q.limits.FlowSeats
}

// throttle throttles a flow with waiting requests after one that took some seconds. The caller calls update.
func (q *Queue) throttle(f *flow, took float64) {
	if q.limits.ThrottleFactor <= 0 || !f.wants() {
		return
	}
	now := q.clock.Now()
	if !q.active.othersThan(f.key.Cluster, now) {
		return
	}
	until := now.Add(min(time.Duration(took*q.limits.ThrottleFactor*float64(time.Second)), maxThrottle))
	if !until.After(now) || !until.After(f.throttledUntil) {
		return
	}
	throttled := !f.throttledUntil.IsZero()
	f.throttledUntil = until
	if !throttled {
		q.clock.AfterFunc(until.Sub(now), func() { q.unthrottle(f) })
	}
}

func (q *Queue) unthrottle(f *flow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if remaining := f.throttledUntil.Sub(q.clock.Now()); remaining > 0 {
		q.clock.AfterFunc(remaining, func() { q.unthrottle(f) })
		return
	}
	f.throttledUntil = time.Time{}
	q.update(f)
	q.dispatch()
}

// endWait ends the wait of a resumed request for its seat. It continues without waiting.
func (q *Queue) endWait(t *queuedRequest) {
	if t.back == nil {
		return
	}
	t.flow.returning = slices.DeleteFunc(t.flow.returning, func(other *queuedRequest) bool { return other == t })
	close(t.back)
	t.back = nil
	q.update(t.flow)
}

func (q *Queue) endPause(t *queuedRequest) {
	t.pausing = false
	t.paused += q.clock.Since(t.began)
	q.move(t, 1)
}

// move counts the seats of an executing request as released (-1) or returned (1).
func (q *Queue) move(t *queuedRequest, direction int) {
	f := t.flow
	f.inUse += direction * t.seats
	q.inUse += direction * t.seats
	f.paused -= direction
	q.paused -= direction
	q.pausedRequests.Add(float64(-direction))
	q.update(f)
	if direction > 0 {
		for held := range q.held {
			q.update(held)
		}
	}
}

// admitPause reports whether another request of a flow may execute although it may pause. A flow may pause at most as
// many requests as may wait, and, except for ownPauses, as remain for other flows. In the latter case, it is held.
func (q *Queue) admitPause(f *flow) bool {
	remaining := q.limits.Paused - q.paused
	if q.limits.Paused > 0 && f.paused+f.inUse >= max(remaining, ownPauses) {
		q.held[f] = struct{}{}
		return false
	}
	delete(q.held, f)
	return f.paused == 0 || f.paused+f.inUse < max(q.limits.FlowWaiting, q.limits.FlowSeats)
}

// Pause releases the seat until resume is called, while a request waits for another party, which may itself need a
// seat. resume waits for a seat of the flow: resumed requests precede new ones, but many may resume at once.
func (s *Seat) Pause() (resume func()) {
	q, t := s.queue, s.queued
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.released {
		return func() {}
	}
	t.open++
	q.endWait(t) // another pause of the same request has ended meanwhile
	if !t.pausing {
		t.pausing, t.began = true, q.clock.Now()
		q.move(t, -1)
		q.dispatch()
	}
	return func() {
		if back := q.resume(t); back != nil {
			<-back
		}
	}
}

// resume ends a pause. It returns a channel that is closed when the request may continue, or nil.
func (q *Queue) resume(t *queuedRequest) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.released {
		return nil
	}
	t.open--
	if t.open > 0 {
		return nil
	}
	f := t.flow
	q.catchUp(f)
	back := make(chan struct{})
	t.back = back
	f.returning = append(f.returning, t)
	q.update(f)
	q.dispatch()
	return back
}
