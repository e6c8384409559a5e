package fairness

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// state returns the numbers of used seats and waiting requests.
func (q *Queue) state() (inUse, waiting, flows int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inUse, q.waiting, len(q.flows)
}

// flow returns the state of a flow, which is zero if the flow does not exist.
func (b *bench) flow(cluster string) flow {
	b.queue.mu.Lock()
	defer b.queue.mu.Unlock()
	if f := b.queue.flows[FlowKey{Cluster: cluster}]; f != nil {
		return *f
	}
	return flow{}
}

func TestSingleLogicalClusterUsesMoreSeats(t *testing.T) {
	b := newBench(t, Limits{Seats: 8, FlowSeats: 1, AloneSeats: 3, Waiting: 10, FlowWaiting: 10})
	first, second, third := b.must("a", "u", 1), b.must("a", "u", 1), b.must("a", "u", 1)
	fourth := b.waits(t.Context(), "a", "u", 1)
	b.must("b", "u", 1)(0) // contention
	first(0)
	second(0)
	require.Empty(t, fourth.release, "the limit under contention is one request at a time")
	third(0)
	(<-fourth.release)(0)

	running := b.must("a", "u", 1)
	next := b.waits(t.Context(), "a", "u", 1)
	b.pass(contentionWindow)
	// Afterwards, a is alone again.
	after := b.must("a", "u", 1)
	require.Eventually(t, func() bool { a := b.flow("a"); return a.inUse == 3 && a.waiting == 0 }, time.Minute, time.Millisecond)
	running(0)
	(<-next.release)(0)
	after(0)
	b.isIdle()
}

func TestFloodIsThrottled(t *testing.T) {
	b := newBench(t, Limits{Seats: 8, FlowSeats: 1, Waiting: 10, FlowWaiting: 10, ThrottleFactor: 2})
	flood := func() (running func(float64), next pending) {
		return b.must("flood", "u", 1), b.waits(t.Context(), "flood", "u", 1)
	}
	running, next := flood()
	b.pass(time.Millisecond)
	running(0)
	(<-next.release)(0) // it is not throttled if it is alone

	b.must("quiet", "u", 1)(0)
	running, next = flood()
	b.pass(time.Millisecond)
	running(0)
	throttled := b.flow("flood")
	require.Equal(t, []int{0, 1}, []int{throttled.inUse, throttled.waiting}, "the flow must be throttled for twice the duration of the request")
	b.must("quiet", "u", 1)(0)
	b.pass(2*time.Millisecond - 1)
	require.Empty(t, next.release)
	b.pass(1)
	(<-next.release)(0)

	running, next = flood()
	b.pass(time.Minute)
	b.must("quiet", "u", 1)(0)
	running(0)
	require.Empty(t, next.release)
	b.pass(maxThrottle)
	(<-next.release)(0)

	// There are no waiting requests, so it has not exceeded its share.
	b.must("flood", "u", 1)(0)
	b.must("flood", "u", 1)(0)
	b.isIdle()
}

func TestPausedRequestsGiveTheirSeats(t *testing.T) {
	b := newBench(t, Limits{Seats: 1, FlowSeats: 1, Waiting: 10, FlowWaiting: 2})
	first := b.acquire("a", "u", 1)
	resumeFirst, again := first.Pause(), first.Pause()
	second := b.acquire("a", "u", 1)
	resumeSecond := second.Pause()
	third := b.waits(t.Context(), "a", "u", 1) // as many are paused as may wait

	b.pass(time.Minute)
	again()
	require.Zero(t, b.flow("a").inUse, "both requests are paused")
	resumeFirst()
	before := b.flow("a")
	require.Equal(t, 1, before.inUse, "the resumed request must have a seat")
	first.Release(0)
	require.Less(t, b.flow("a").at-before.at, 1.0, "time in pauses must not be counted")
	(<-third.release)(0)
	resumeSecond()
	second.Release(0)
	b.isIdle()
}

// TestResumeOrder checks that requests with pauses that end together only use the
// seats of their flow, and precede new requests of their flow.
func TestResumeOrder(t *testing.T) {
	b := newBench(t, Limits{Seats: 3, FlowSeats: 2, Waiting: 20, FlowWaiting: 20})
	const many = 10
	back := make(chan *Seat, many)
	var resumes []func()
	for range many {
		seat := b.acquire("noisy", "u", 1)
		resume := seat.Pause()
		resumes = append(resumes, func() {
			resume()
			back <- seat
		})
	}
	first, second := b.must("noisy", "u", 1), b.must("noisy", "u", 1)
	next := b.waits(t.Context(), "noisy", "u", 1)
	for _, resume := range resumes {
		go resume()
	}
	require.Eventually(t, func() bool { return len(b.flow("noisy").returning) == many }, time.Minute, time.Millisecond, "all resumed requests must wait for a seat")
	b.must("quiet", "u", 1)(0)
	first(0)
	second(0)
	for i := range many {
		seat := <-back
		require.LessOrEqual(t, b.flow("noisy").inUse, 2)
		if i < many-1 { // then one of the two seats is free
			require.Empty(t, next.release, "new requests must be granted last")
		}
		b.must("quiet", "u", 1)(0)
		seat.Release(0)
	}
	(<-next.release)(0)
	b.isIdle()
}

// TestNoCreditInPauses checks that a flow does not accumulate credit while all of its requests are paused.
func TestNoCreditInPauses(t *testing.T) {
	b := newBench(t, Limits{Seats: 1, FlowSeats: 1, Waiting: 100, FlowWaiting: 40})
	paused := b.acquire("back", "u", 1)
	resume := paused.Pause()
	for range 100 {
		release := b.must("busy", "u", 1)
		b.pass(time.Second)
		release(0)
	}
	running := b.must("busy", "u", 1)
	remaining := b.allWait(10, "busy", "back")
	turns := b.serve(running, remaining, always(time.Second))
	require.Contains(t, turns[:4], "busy/u", "%v", turns)
	resume()
	paused.Release(0)
}

// TestPausesEndWithTheSeat checks that a watch may pause before, while and after its seat is released.
func TestPausesEndWithTheSeat(t *testing.T) {
	b := newBench(t, Limits{Seats: 2, FlowSeats: 2, Waiting: 10, FlowWaiting: 2})
	seat := b.acquire("a", "u", 2)
	resume := seat.Pause()
	seat.Release(0)
	other := b.must("b", "u", 2)
	require.Equal(t, 2, b.flow("b").inUse)
	again := seat.Pause()
	inUse, _, _ := b.queue.state()
	require.Equal(t, 2, inUse, "a request without a seat must not release one")
	again()
	resume()
	inUse, waiting, _ := b.queue.state()
	require.Equal(t, []int{2, 0}, []int{inUse, waiting})
	other(0)
	b.isIdle()
}

// TestPauseLimits checks that logical clusters with hanging webhooks leave pauses for others,
// and that requests of flows without remaining pauses wait.
func TestPauseLimits(t *testing.T) {
	b := newBench(t, Limits{Seats: 4, FlowSeats: 1, Waiting: 100, FlowWaiting: 50, Paused: 20})
	pause := func(cluster string) (resume func()) {
		seat := b.acquire(cluster, "u", 1)
		goOn := seat.Pause()
		return func() {
			goOn()
			seat.Release(0)
		}
	}
	var hang []func()
	for range 10 {
		hang = append(hang, pause("noisy"))
	}
	held := b.waits(t.Context(), "noisy", "u", 1)
	for range 5 {
		hang = append(hang, pause("another"))
	}
	alsoHeld := b.waits(t.Context(), "another", "u", 1)
	for _, quiet := range []string{"a", "b", "c"} {
		for range ownPauses {
			hang = append(hang, pause(quiet)) // regardless of others
		}
	}
	b.must("d", "u", 1)(0) // it does not pause
	require.Empty(t, held.release)
	var going sync.WaitGroup
	for _, goOn := range hang {
		going.Go(goOn)
	}
	(<-held.release)(0)
	(<-alsoHeld.release)(0)
	going.Wait()
	require.Empty(t, b.queue.held)
}
