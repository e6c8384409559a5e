package fairness

import (
	"slices"
	"time"
)

// What a logical cluster gets depends on whether there is contention. Alone it may
// use what the server has. Next to others it gets few seats and is throttled
// between its requests when it asks for more than that: a server whose cores never idle
// answers everybody late, since nothing in it, neither Go's scheduler nor the
// kernel's, knows whose request should run first.

const (
	// contentionWindow is for how long a logical cluster that has sent a request
	// contends with others.
	contentionWindow = 10 * time.Second
	// maxThrottle bounds throttling: a request that takes longer waits for the disk
	// or for a webhook rather than for a core.
	maxThrottle = 10 * time.Millisecond
)

// activity knows the last two logical clusters that have sent requests, which
// is enough to know whether there are others than a given one.
type activity struct {
	last, other struct {
		cluster string
		at      time.Time
	}
}

func (a *activity) saw(cluster string, now time.Time) {
	if a.last.cluster != cluster {
		a.other, a.last.cluster = a.last, cluster
	}
	a.last.at = now
}

// othersThan reports whether another logical cluster has sent a request lately.
func (a *activity) othersThan(cluster string, now time.Time) bool {
	other := a.last.at
	if a.last.cluster == cluster {
		other = a.other.at
	}
	return now.Sub(other) < contentionWindow
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

// pauses are those of one request.
type pauses struct {
	// open are the pauses that have not ended; they may overlap.
	open int
	// away is set while the seat is given away, since began: until no pause is open
	// and a seat is free again.
	away  bool
	began time.Time
	// back is closed when nobody waits for the seat any more; nil where nobody does.
	back chan struct{}
	// paused is how long the seat was given away before.
	paused time.Duration
	// released is set once the seat is given back, before the request of a watch ends.
	released bool
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

func (h flowHeap) Len() int { return len(h) }

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
