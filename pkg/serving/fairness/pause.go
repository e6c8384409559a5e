package fairness

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
