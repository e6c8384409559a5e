package fairness

import (
	"slices"
	"time"
)

// ownPauses is how many requests of a flow may be paused however many of others are.
const ownPauses = 4

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

// Pause lets others have the seat until resume. It is for requests that wait
// for somebody else, who may need the seat to answer. resume waits for a seat
// of the flow, which those that come back get before those that are new: what they
// waited for may end for many requests at once, as may they themselves, and others must
// not wait for all of them. What is released has nothing to pause, and nothing to take
// back.
func (s *Seat) Pause() (resume func()) {
	q, t := s.queue, s.queued
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.released {
		return func() {}
	}
	t.open++
	q.stay(t) // another pause of the same request has ended meanwhile
	if !t.away {
		t.away, t.began = true, q.clock.Now()
		q.move(t, -1)
		q.dispatch()
	}
	return func() {
		if back := q.resume(t); back != nil {
			<-back
		}
	}
}

// resume ends a pause. It returns what is closed when the request may go on, or nil
// if it may at once.
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
