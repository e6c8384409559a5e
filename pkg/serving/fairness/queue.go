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

// FlowKey names a flow: what reads, or what writes, in a logical cluster.
type FlowKey struct {
	Cluster string
	Writes  bool
}

// flow is the state of one flow. It exists while it has requests, or is ahead of
// the queue's time.
type flow struct {
	key     FlowKey
	inUse   int
	waiting int
	paused  int
	// returning are paused requests that would go on, and wait for a seat.
	returning []*queuedRequest
	// at is the flow's virtual time.
	at float64
	// mean is what a request takes, in seconds for each seat.
	mean float64
	// throttledUntil is set while the flow is throttled.
	throttledUntil time.Time
	// lanes are the waiting requests by user; those of the first come next.
	lanes []*lane
	// index is the position in the heap of ready flows, or -1.
	index int
}

// lane holds the waiting requests of one user.
type lane struct {
	user     string
	requests []*queuedRequest
}

// queuedRequest is a request that waits, or executes.
type queuedRequest struct {
	flow    *flow
	seats   int
	granted chan struct{}
	started bool
	// guess is what was added to the flow's time when the request was granted.
	guess float64
	since time.Time
	pauses
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

func (f *flow) idle() bool { return f.inUse == 0 && f.waiting == 0 && f.paused == 0 }

// wants reports whether requests wait for a seat.
func (f *flow) wants() bool { return f.waiting > 0 || len(f.returning) > 0 }

// head returns the request that comes next.
func (f *flow) head() *queuedRequest {
	if len(f.returning) > 0 {
		return f.returning[0]
	}
	return f.lanes[0].requests[0]
}

// pop takes the new request that comes next; its user's others come after those of
// the flow's other users.
func (f *flow) pop() *queuedRequest {
	first := f.lanes[0]
	t := first.requests[0]
	first.requests = first.requests[1:]
	f.lanes = f.lanes[1:]
	if len(first.requests) > 0 {
		f.lanes = append(f.lanes, first)
	}
	f.waiting--
	return t
}

func (f *flow) push(user string, t *queuedRequest) {
	f.waiting++
	for _, l := range f.lanes {
		if l.user == user {
			l.requests = append(l.requests, t)
			return
		}
	}
	f.lanes = append(f.lanes, &lane{user: user, requests: []*queuedRequest{t}})
}

// remove takes out a request that waits no longer.
func (f *flow) remove(t *queuedRequest) {
	for i, l := range f.lanes {
		if at := slices.Index(l.requests, t); at >= 0 {
			l.requests = slices.Delete(l.requests, at, at+1)
			f.waiting--
			if len(l.requests) == 0 {
				f.lanes = slices.Delete(f.lanes, i, i+1)
			}
			return
		}
	}
}

func (f *flow) waitingOf(user string) int {
	for _, l := range f.lanes {
		if l.user == user {
			return len(l.requests)
		}
	}
	return 0
}

// flowHeap is a heap of flows by their virtual time.
type flowHeap []*flow

func (h flowHeap) Len() int           { return len(h) }
func (h flowHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h flowHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *flowHeap) Push(x any) {
	f, _ := x.(*flow)
	f.index = len(*h)
	*h = append(*h, f)
}

// Pop implements heap.Interface.
func (h *flowHeap) Pop() any {
	old := *h
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	f.index = -1
	return f
}
