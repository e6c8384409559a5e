package bindings

import (
	"maps"
	"sync"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// consumed counts the bindings to each export, including those that have bound nothing.
type consumed struct {
	mu        sync.RWMutex
	counts    map[client.Key]int
	listeners definitions.Listeners[client.Key]
}

// replaced is called when a record was replaced; either record may be nil. It notifies listeners of exports that got
// their first binding or lost their last one.
func (c *consumed) replaced(before, after *record) {
	old, had := before.exportKey()
	now, has := after.exportKey()
	if had == has && old == now {
		return
	}
	var changed []client.Key
	c.mu.Lock()
	if had && count(c.counts, old, -1) == 0 {
		changed = append(changed, old)
	}
	if has && count(c.counts, now, 1) == 1 {
		changed = append(changed, now)
	}
	c.mu.Unlock()
	for _, export := range changed {
		c.listeners.Notify(export)
	}
}

// Consumed reports whether the shard has a binding to an export, even if it has bound nothing.
func (c *consumed) Consumed(export client.Key) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.counts[export] > 0
}

// FollowConsumers calls f for each export that has a binding, and whenever an export gets its first binding or loses
// its last one, until stop is called. Consumed returns the current state.
func (c *consumed) FollowConsumers(f func(export client.Key)) (stop func()) {
	stop = c.listeners.Add(f)
	c.mu.RLock()
	counts := maps.Clone(c.counts)
	c.mu.RUnlock()
	for export := range counts {
		f(export)
	}
	return stop
}
