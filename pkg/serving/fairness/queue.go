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

// ownPauses is how many requests of a flow may be paused however many of others are.
const ownPauses = 4

// Errors of Acquire.
var (
	errQueueFull = errors.New("too many requests wait for this logical cluster")
	errTimeout   = errors.New("the request waited for its turn as long as it may")
)

// Limits bound what a Queue admits.
type Limits struct {
	// Seats is how much is executed at a time, FlowSeats how much of one flow.
	Seats, FlowSeats int
	// AloneSeats is how much of one flow while no other logical cluster sends
	// requests; it counts where it is more than FlowSeats.
	AloneSeats int
	// ThrottleFactor says for how long a flow in which requests wait is throttled
	// after each one while other logical clusters send requests: that many times as
	// long as it took, but never longer than maxThrottle.
	ThrottleFactor float64
	// Waiting is how many requests wait at a time, FlowWaiting how many of one
	// flow.
	Waiting, FlowWaiting int
	// Paused is how many requests wait for a webhook or a client at a time, but for a few that
	// each flow has in any case; of one flow, as many as FlowWaiting. 0 is any number.
	Paused int
}

// firstGuess is the time that the first request of a flow is thought to take.
const firstGuess = 5 * time.Millisecond

// Queue lets requests execute by start-time fair queueing: each flow has a clock
// of the work done for it, in seats times seconds, and the waiting flow whose
// clock is furthest behind comes next. What a request will cost is guessed when
// it starts and put right when it ends. A flow that was idle starts at the
// current time of the queue: it cannot save up.
//
// Within a flow, users take turns.
type Queue struct {
	limits         Limits
	clock          Clock
	pausedRequests prometheus.Gauge

	mu      sync.Mutex
	active  activity
	inUse   int
	waiting int
	paused  int
	// now is the queue's virtual time: the clock of the flow that started last.
	now   float64
	flows map[FlowKey]*flow
	// held are flows in which requests wait until fewer are paused.
	held map[*flow]struct{}
	// kept is how many flows were left when they were last looked through.
	kept int
	// ready are the flows that have something waiting that their own limit lets
	// start; the one furthest behind is the first.
	ready flowHeap
}

// Clock is the time that a Queue goes by.
type Clock interface {
	clock.PassiveClock
	clock.WithDelayedExecution
}

// NewQueue returns a queue with those limits. The numbers of seats and of places
// to wait must be positive.
func NewQueue(limits Limits, c Clock, pausedRequests prometheus.Gauge) *Queue {
	return &Queue{limits: limits, clock: c, pausedRequests: pausedRequests, flows: map[FlowKey]*flow{}, held: map[*flow]struct{}{}}
}

// Acquire waits for the turn of a request of user in the flow that takes that
// many seats. noted is told when the request begins and ends to wait. The caller
// releases the Seat.
func (q *Queue) Acquire(ctx context.Context, key FlowKey, user string, seats int, noted func(waits bool)) (*Seat, error) {
	seats = max(1, min(seats, q.limits.FlowSeats, q.limits.Seats))
	t, err := q.enter(key, user, seats)
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

// Seat is what a request has that executes.
type Seat struct {
	queue  *Queue
	queued *queuedRequest
}

// Release gives the seat back when the request has ended. extra is what it has
// cost beyond its seats and its time, in seats times seconds.
func (s *Seat) Release(extra float64) { s.queue.release(s.queued, extra) }

// enter puts a request into its flow's queue, and grants what can start.
func (q *Queue) enter(key FlowKey, user string, seats int) (*queuedRequest, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.active.saw(key.Cluster, q.clock.Now())
	f := q.flows[key]
	if f == nil {
		f = &flow{key: key, index: -1, mean: firstGuess.Seconds()}
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

// catchUp has a flow of which nothing executes or wants to start at the current time:
// it cannot save up, not even while its requests are paused.
func (q *Queue) catchUp(f *flow) {
	if f.inUse == 0 && !f.wants() {
		f.at = max(f.at, q.now)
	}
}

// full reports whether a request of user in the flow may not wait. One flow, and
// one user of it, may take what is left, but never all that there is: whoever
// comes next finds room.
func (q *Queue) full(f *flow, user string) bool {
	room := min(q.limits.FlowWaiting, q.limits.Waiting-q.waiting)
	return f.waiting >= room || f.waitingOf(user) >= max(1, room-f.waiting)
}

// leave takes a request out of its queue; false if it was granted meanwhile.
func (q *Queue) leave(t *queuedRequest) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.started {
		return false
	}
	q.withdraw(t)
	q.dispatch() // it may have been in the way of others
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
	q.stay(t)
	if t.away {
		q.comeBack(t)
	}
	t.released = true
	f, seats := t.flow, float64(t.seats)
	took := (q.clock.Since(t.since) - t.paused).Seconds()
	f.at += seats*took + extra - t.guess
	const weight = 0.2
	f.mean += weight * (took + extra/seats - f.mean)
	f.inUse -= t.seats
	q.inUse -= t.seats
	q.throttle(f, took)
	q.update(f)
	q.dropIdle(f)
	q.dispatch()
}

// dispatch grants seats as long as there are any.
func (q *Queue) dispatch() {
	for len(q.ready) > 0 {
		f := q.ready[0]
		if q.inUse > 0 && q.inUse+f.head().seats > q.limits.Seats {
			// Narrower requests of others must not overtake it for ever.
			return
		}
		q.now = max(q.now, f.at)
		if len(f.returning) > 0 {
			t := f.returning[0]
			q.comeBack(t)
			q.stay(t)
			continue
		}
		t := f.pop()
		q.waiting--
		t.guess = float64(t.seats) * f.mean
		f.at += t.guess
		f.inUse += t.seats
		q.inUse += t.seats
		t.started, t.since = true, q.clock.Now()
		q.update(f)
		close(t.granted)
	}
}

// update puts the flow where it belongs among those that are ready.
func (q *Queue) update(f *flow) {
	if f.waiting == 0 {
		delete(q.held, f)
	}
	ready := (len(f.returning) > 0 || f.waiting > 0 && q.mayPause(f)) && f.throttledUntil.IsZero() && (f.inUse == 0 || f.inUse+f.head().seats <= q.seatsOf(f))
	switch {
	case ready && f.index < 0:
		heap.Push(&q.ready, f)
	case ready:
		heap.Fix(&q.ready, f.index)
	case f.index >= 0:
		heap.Remove(&q.ready, f.index)
	}
}

// dropIdle drops flows that are as good as new: idle, and not ahead of the
// queue's time.
func (q *Queue) dropIdle(f *flow) {
	if q.inUse == 0 && q.waiting == 0 && q.paused == 0 {
		clear(q.flows) // nobody is left whom anybody could be ahead of
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

// seatsOf returns how many seats a flow may take now.
func (q *Queue) seatsOf(f *flow) int {
	if q.limits.AloneSeats > q.limits.FlowSeats && !q.active.othersThan(f.key.Cluster, q.clock.Now()) {
		return q.limits.AloneSeats
	}
	return q.limits.FlowSeats
}

// throttle holds a flow up in which requests wait, after one that took that many
// seconds. The caller holds the lock and updates the flow.
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

// unthrottle ends what throttle began, unless it has become longer.
func (q *Queue) unthrottle(f *flow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if left := f.throttledUntil.Sub(q.clock.Now()); left > 0 {
		q.clock.AfterFunc(left, func() { q.unthrottle(f) })
		return
	}
	f.throttledUntil = time.Time{}
	q.update(f)
	q.dispatch()
}

// stay ends the wait of a request for its seat. It goes on without.
func (q *Queue) stay(t *queuedRequest) {
	if t.back == nil {
		return
	}
	t.flow.returning = slices.DeleteFunc(t.flow.returning, func(other *queuedRequest) bool { return other == t })
	close(t.back)
	t.back = nil
	q.update(t.flow)
}

// comeBack gives a request its seat again.
func (q *Queue) comeBack(t *queuedRequest) {
	t.away = false
	t.paused += q.clock.Since(t.began)
	q.move(t, 1)
}

// move counts the seats of a request that executes as given away (-1) or back (1).
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

// mayPause reports whether one more request of a flow may execute that might
// pause: as many as may wait in the queue, and no more than are left to others of
// all that may pause, but for ownPauses.
func (q *Queue) mayPause(f *flow) bool {
	left := q.limits.Paused - q.paused
	if q.limits.Paused > 0 && f.paused+f.inUse >= max(left, ownPauses) {
		q.held[f] = struct{}{}
		return false
	}
	delete(q.held, f)
	return f.paused == 0 || f.paused+f.inUse < max(q.limits.FlowWaiting, q.limits.FlowSeats)
}
