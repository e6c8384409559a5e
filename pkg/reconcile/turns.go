package reconcile

import (
	"sync"
	"time"
)

// Turns gives keys their turns, one after the other, so that what is done for all keys that
// there are, as after an upgrade, does not keep others from their work.
type Turns[K comparable] struct {
	// Interval is the time between two turns.
	Interval time.Duration

	mu   sync.Mutex
	next time.Time
	of   map[K]time.Time
}

// Wait returns how long it is until the turn of a key, which is the last if it has none. The
// key keeps its turn until Forget.
func (t *Turns[K]) Wait(key K, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.of[key]
	if !ok {
		if t.next.Before(now) {
			t.next = now
		}
		at = t.next
		t.next = t.next.Add(t.Interval)
		if t.of == nil {
			t.of = map[K]time.Time{}
		}
		t.of[key] = at
	}
	return at.Sub(now)
}

// Forget forgets the turn of a key.
func (t *Turns[K]) Forget(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, key)
}
