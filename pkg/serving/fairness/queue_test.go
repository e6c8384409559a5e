package fairness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testClock is a fake clock with functions that may read the time.
type testClock struct{ *clocktesting.FakeClock }

func (c testClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	return c.FakeClock.AfterFunc(d, func() { go f() })
}

// bench is a queue with requests that take the time that the test sets.
type bench struct {
	t     *testing.T
	clock testClock
	queue *Queue
	// turns are the granted requests in order.
	mu    sync.Mutex
	turns []string
}

func newBench(t *testing.T, limits Limits) *bench {
	t.Helper()
	c := testClock{clocktesting.NewFakeClock(time.Unix(1000, 0))}
	return &bench{t: t, clock: c, queue: NewQueue(limits, c, newMetrics(nil).pausedRequests)}
}

func (b *bench) pass(d time.Duration) { b.clock.Step(d) }

// acquire returns a seat that is free.
func (b *bench) acquire(key, user string, seats int) *Seat {
	b.t.Helper()
	waits := func(bool) { b.t.Errorf("request of %s in %s waited", user, key) }
	seat, err := b.queue.Acquire(b.t.Context(), FlowKey{Cluster: key}, user, seats, waits)
	require.NoError(b.t, err)
	return seat
}

func (b *bench) must(key, user string, seats int) func(float64) {
	b.t.Helper()
	return b.acquire(key, user, seats).Release
}

// isIdle checks that the queue has forgotten all requests.
func (b *bench) isIdle() {
	b.t.Helper()
	inUse, waiting, flows := b.queue.state()
	require.Zero(b.t, inUse+waiting+flows)
}

// pending is a waiting request.
type pending struct {
	release chan func(float64)
	err     chan error
}

// waits requests seats and returns when the request is in the queue.
func (b *bench) waits(ctx context.Context, key, user string, seats int) pending {
	b.t.Helper()
	p := pending{make(chan func(float64), 1), make(chan error, 1)}
	inQueue := make(chan struct{})
	go func() {
		seat, err := b.queue.Acquire(ctx, FlowKey{Cluster: key}, user, seats, func(waits bool) {
			if waits {
				close(inQueue)
			}
		})
		if err != nil {
			p.err <- err
			return
		}
		b.mu.Lock()
		b.turns = append(b.turns, key+"/"+user)
		b.mu.Unlock()
		p.release <- seat.Release
	}()
	select {
	case <-inQueue:
	case err := <-p.err:
		b.t.Fatalf("refused: %v", err)
	case <-time.After(10 * time.Second):
		b.t.Fatal("the request does not wait")
	}
	return p
}

// allWait requests n seats for each flow, in turn.
func (b *bench) allWait(n int, flows ...string) (all []pending) {
	b.t.Helper()
	for range n {
		for _, flow := range flows {
			all = append(all, b.waits(b.t.Context(), flow, "u", 1))
		}
	}
	return all
}

// serve finishes a request that took d, and then all waiting requests, and returns their order.
func (b *bench) serve(running func(float64), remaining []pending, d func(turn string) time.Duration) []string {
	b.t.Helper()
	b.pass(d(""))
	running(0)
	for range remaining {
		release := b.next(remaining)
		b.mu.Lock()
		turn := b.turns[len(b.turns)-1]
		b.mu.Unlock()
		b.pass(d(turn))
		release(0)
	}
	return b.turns
}

// next waits for the only granted request.
func (b *bench) next(remaining []pending) (release func(float64)) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		for _, p := range remaining {
			select {
			case release = <-p.release:
				return true
			default:
			}
		}
		return false
	}, 10*time.Second, 100*time.Microsecond, "no request was granted")
	return release
}

func always(d time.Duration) func(string) time.Duration {
	return func(string) time.Duration { return d }
}

func TestQuietFlowsOvertakeTheFlood(t *testing.T) {
	b := newBench(t, Limits{Seats: 1, FlowSeats: 1, Waiting: 100, FlowWaiting: 40})
	running := b.must("flood", "u", 1)
	remaining := slices.Concat(b.allWait(20, "flood"), b.allWait(2, "quiet"))
	turns := b.serve(running, remaining, always(10*time.Millisecond))
	require.Len(t, turns, 22)
	require.Equal(t, "quiet/u", turns[0], "the flow without granted requests must be first: %v", turns)
	require.Equal(t, 2, strings.Count(fmt.Sprint(turns[:4]), "quiet/u"), "both requests must be among the first four: %v", turns)
}

func TestFlowsShareTimeAndNotRequests(t *testing.T) {
	b := newBench(t, Limits{Seats: 1, FlowSeats: 1, Waiting: 200, FlowWaiting: 100})
	running := b.must("other", "u", 1)
	remaining := b.allWait(40, "slow", "fast")
	turns := b.serve(running, remaining, func(turn string) time.Duration {
		if turn == "slow/u" {
			return 90 * time.Millisecond
		}
		return 10 * time.Millisecond
	})
	fast := strings.Count(fmt.Sprint(turns[:40]), "fast/u")
	require.GreaterOrEqual(t, fast, 32, "nine fast requests must be granted for each slow one: %v", turns[:40])
}

func TestUsersOfOneFlowTakeTurns(t *testing.T) {
	b := newBench(t, Limits{Seats: 1, FlowSeats: 1, Waiting: 100, FlowWaiting: 80})
	running := b.must("c", "busy", 1)
	var remaining []pending
	for range 10 {
		remaining = append(remaining, b.waits(t.Context(), "c", "busy", 1))
	}
	remaining = append(remaining, b.waits(t.Context(), "c", "human", 1))
	turns := b.serve(running, remaining, always(time.Millisecond))
	require.Contains(t, turns[:2], "c/human")
}

func TestOneFlowLeavesSeatsForOthers(t *testing.T) {
	b := newBench(t, Limits{Seats: 4, FlowSeats: 2, Waiting: 10, FlowWaiting: 10})
	first, second := b.must("flood", "u", 1), b.must("flood", "u", 1)
	third := b.waits(t.Context(), "flood", "u", 1)
	b.must("quiet", "u", 1)(0)
	first(0)
	(<-third.release)(0)
	second(0)
	b.isIdle()
}

func TestWideRequestsAreNotStarved(t *testing.T) {
	b := newBench(t, Limits{Seats: 4, FlowSeats: 4, Waiting: 10, FlowWaiting: 10})
	small := b.must("a", "u", 1)
	wide := b.waits(t.Context(), "b", "u", 4)
	after := b.waits(t.Context(), "c", "u", 1)
	small(0)
	release := <-wide.release
	require.Empty(t, after.release, "the later request must not fit anymore")
	release(0)
	(<-after.release)(0)
	b.must("a", "u", 99)(0) // limited to the total
}

func TestRejectsWhenOverloaded(t *testing.T) {
	b := newBench(t, Limits{Seats: 1, FlowSeats: 1, Waiting: 12, FlowWaiting: 8})
	running := b.must("flood", "u", 1)
	ctx, cancel := context.WithCancel(t.Context())
	var remaining []pending
	for range 4 {
		remaining = append(remaining, b.waits(ctx, "flood", "u", 1))
	}
	_, err := b.queue.Acquire(ctx, FlowKey{Cluster: "flood"}, "u", 1, func(bool) {})
	require.ErrorIs(t, err, errQueueFull, "one user must get at most half of the queue of its logical cluster")
	remaining = append(remaining, b.waits(ctx, "flood", "other", 1))
	remaining = append(remaining, b.waits(ctx, "quiet", "u", 1))

	cancel()
	for _, p := range remaining {
		require.ErrorIs(t, <-p.err, errTimeout)
	}
	running(0)
	b.isIdle()
}

func TestManyFloodsLeaveCapacity(t *testing.T) {
	b := newBench(t, Limits{Seats: 1, FlowSeats: 1, Waiting: 64, FlowWaiting: 64})
	running := b.must("flood-0", "u", 1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var refused atomic.Int64
	for i := range 400 {
		wg.Go(func() {
			if _, err := b.queue.Acquire(ctx, FlowKey{Cluster: fmt.Sprintf("flood-%d", i%4)}, fmt.Sprint("u", i%16), 1, func(bool) {}); err != nil {
				refused.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { _, waiting, _ := b.queue.state(); return waiting+int(refused.Load()) == 400 }, time.Minute, time.Millisecond)
	require.Positive(t, refused.Load())
	quiet := b.waits(ctx, "quiet", "u", 1)
	cancel()
	wg.Wait()
	if err := <-quiet.err; err != nil { // it may have been granted before
		require.ErrorIs(t, err, errTimeout)
	}
	running(0)
}

func TestIdleFlowsGetNoCredit(t *testing.T) {
	b := newBench(t, Limits{Seats: 1, FlowSeats: 1, Waiting: 100, FlowWaiting: 40})
	running := b.must("busy", "u", 1)
	for range 100 { // without a break, because an empty queue forgets all flows
		next := b.waits(t.Context(), "busy", "u", 1)
		b.pass(time.Second)
		running(0)
		running = <-next.release
	}
	b.turns = nil
	remaining := b.allWait(10, "busy", "back")
	turns := b.serve(running, remaining, always(time.Second))
	require.Contains(t, turns[:4], "busy/u", "%v", turns)
}

func TestConcurrently(t *testing.T) {
	const seats = 3
	b := newBench(t, Limits{Seats: seats, FlowSeats: 2, Waiting: 1000, FlowWaiting: 1000})
	var wg sync.WaitGroup
	var running atomic.Int64
	for i := range 16 {
		wg.Go(func() {
			for j := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+j)%7 == 0 {
					cancel()
				}
				seat, err := b.queue.Acquire(ctx, FlowKey{Cluster: fmt.Sprint("c", i%5), Writes: j%2 == 0}, fmt.Sprint("u", j%3), 1+j%2, func(bool) {})
				if err == nil {
					if now := running.Add(1); now > seats {
						t.Errorf("%d requests execute on %d seats", now, seats)
					}
					running.Add(-1)
					if j%3 == 0 {
						resume := seat.Pause()
						seat.Pause()()
						resume()
						if now := running.Add(1); now > seats {
							t.Errorf("%d requests execute on %d seats after a pause", now, seats)
						}
						running.Add(-1)
					}
					seat.Release(0.001)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	b.isIdle()
}
