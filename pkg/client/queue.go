package client

import "sync"

// buffer is how many changes wait for a buffered handler.
const buffer = 1000

// entry is a change that a handler is to be told of, or that there is no initial one after it.
type entry[T Object] struct {
	Change[T]

	synced bool
}

// queue has what a buffered handler is to be told. Its goroutine runs while there is any. A
// nil queue is empty.
type queue[T Object] struct {
	to *added[T]

	mu sync.Mutex
	// changed tells of any change of what follows.
	changed sync.Cond
	entries []entry[T]
	running bool
	closed  bool
}

func newQueue[T Object](to *added[T]) *queue[T] {
	q := &queue[T]{to: to}
	q.changed.L = &q.mu
	return q
}

// add adds an entry, when there is room.
func (q *queue[T]) add(e entry[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.entries) >= buffer && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		return
	}
	q.entries = append(q.entries, e)
	if !q.running {
		q.running = true
		go q.run()
	}
}

// run tells the handler of all entries.
func (q *queue[T]) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.entries) > 0 {
		e := q.entries[0]
		q.entries[0] = entry[T]{}
		q.entries = q.entries[1:]
		q.changed.Broadcast()
		q.mu.Unlock()
		if e.synced {
			q.to.markSynced()
		} else {
			q.to.call(e.Change)
		}
		q.mu.Lock()
	}
	q.entries, q.running = nil, false
	q.changed.Broadcast()
}

// wait waits until the handler has been told of all.
func (q *queue[T]) wait() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running {
		q.changed.Wait()
	}
}

// close drops what waits, and waits for the handler to return.
func (q *queue[T]) close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	q.closed, q.entries = true, nil
	q.changed.Broadcast()
	q.mu.Unlock()
	q.wait()
}
