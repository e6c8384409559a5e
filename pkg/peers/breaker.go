package peers

import (
	"sync"
	"sync/atomic"
	"time"
)

// OpenTimeout is for how long a shard that did not answer is not asked again.
const OpenTimeout = time.Second

// silentTimeout is for how long a shard that did not answer, and that nobody has asked since, is
// left alone. By then root's shard has judged by its heartbeats.
const silentTimeout = time.Minute

// breaker keeps requests from a shard that does not answer. Closed, it costs an
// atomic load. It opens when a request is not answered; after a while one request
// at a time finds out whether the shard answers again.
type breaker struct {
	open atomic.Bool

	mu sync.Mutex
	// until is when the next request may find out, and probing is set while one
	// does.
	until   time.Time
	probing bool
}

// Ask reports whether the shard may be asked now. Who was told so calls Heard, or
// Left without having heard anything.
func (b *breaker) Allow() bool {
	if !b.open.Load() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() && (b.probing || time.Now().Before(b.until)) {
		return false
	}
	b.probing = true
	return true
}

// heard notes whether the shard answered, and reports whether that is news.
func (b *breaker) heard(answered bool) (changed bool) {
	if answered && !b.open.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if !answered {
		b.until = time.Now().Add(OpenTimeout)
	}
	return b.open.Swap(!answered) == answered
}

// Silent reports whether the shard has not answered lately: who has others to turn to leaves
// it alone. Whether it answers again, others find out who have none.
func (b *breaker) Silent() bool {
	if !b.open.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open.Load() && time.Since(b.until) < silentTimeout
}

// Left says that nobody knows whether the shard would have answered: who asked
// has not waited.
func (b *breaker) Done() {
	if !b.open.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}
