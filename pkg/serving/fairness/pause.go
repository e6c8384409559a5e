package fairness

import "time"

// ownPauses is how many requests of a flow may be paused however many of others are.
const ownPauses = 4

// pauses are those of one request.
type pauses struct {
	// open are the pauses that have not ended; they may overlap.
	open  int
	began time.Time
	// paused is how long the pauses were that have ended.
	paused time.Duration
	// released is set once the seat is given back, before the request of a watch ends.
	released bool
}

// Pause lets others have the seat until resume. It is for requests that wait
// for somebody else, who may need the seat to answer. resume takes the seat back
// at once, even where that makes more than there are. What is released has
// nothing to pause, and nothing to take back.
func (s *Seat) Pause() (resume func()) {
	q, t := s.queue, s.queued
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.released {
		return func() {}
	}
	t.open++
	if t.open == 1 {
		t.began = q.clock.Now()
		q.move(t, -1)
	}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if t.released {
			return
		}
		t.open--
		if t.open == 0 {
			q.resume(t)
		}
	}
}

// resume ends the pauses of a request.
func (q *Queue) resume(t *queuedRequest) {
	t.open = 0
	t.paused += q.clock.Since(t.began)
	q.move(t, 1)
}

// move gives the seats of a request that executes away (-1) or back (1).
func (q *Queue) move(t *queuedRequest, direction int) {
	f := t.flow
	f.inUse += direction * t.seats
	q.inUse += direction * t.seats
	f.paused -= direction
	q.paused -= direction
	pausedRequests.Add(float64(-direction))
	q.update(f)
	if direction > 0 {
		for held := range q.held {
			q.update(held)
		}
	}
	q.dispatch()
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
