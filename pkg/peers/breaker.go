package peers

import (
	"sync"
	"sync/atomic"
	"time"
)

// OpenTimeout is the time for which requests to an unreachable shard are rejected.
const OpenTimeout = time.Second

// silentTimeout is the time for which an unreachable shard without further requests is reported as Silent. By then the
// root shard has evaluated its heartbeats.
const silentTimeout = time.Minute

// breaker is a circuit breaker for requests to a shard. If closed, it costs one atomic load. It opens when a request
// fails; after a while, one request at a time probes whether the shard responds again.
type breaker struct {
	open atomic.Bool

	mu sync.Mutex
	// until is the time of the next probe. probing is set during a probe.
	until   time.Time
	probing bool
}

// Allow reports whether a request may be sent. If so, the caller must call Observe, or Done if the result is unknown.
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

// observe records whether the shard responded, and reports whether that has changed.
func (b *breaker) observe(responded bool) (changed bool) {
	if responded && !b.open.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if !responded {
		b.until = time.Now().Add(OpenTimeout)
	}
	return b.open.Swap(!responded) == responded
}

// Silent reports whether the shard has not responded lately, so that callers with a choice should use another shard.
// The probes are left to callers without a choice.
func (b *breaker) Silent() bool {
	if !b.open.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open.Load() && time.Since(b.until) < silentTimeout
}

// Done ends a request with an unknown result, e.g. because the caller has canceled it.
func (b *breaker) Done() {
	if !b.open.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}
