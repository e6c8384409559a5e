package bindings

import (
	"maps"
	"sync"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// consumed counts the bindings of each export, those that have bound nothing among them.
type consumed struct {
	mu        sync.RWMutex
	counts    map[client.Key]int
	listeners definitions.Listeners[client.Key]
}

// replaced notes that a record has taken the place of another; either may be nil. It
// tells of the exports that have a first binding now, or have lost the last one.
func (c *consumed) replaced(before, after *record) {
	old, had := before.exportKey()
	now, has := after.exportKey()
	if had == has && old == now {
		return
	}
	var changed []client.Key
	c.mu.Lock()
	if had {
		if c.counts[old]--; c.counts[old] == 0 {
			delete(c.counts, old)
			changed = append(changed, old)
		}
	}
	if has {
		if c.counts[now]++; c.counts[now] == 1 {
			changed = append(changed, now)
		}
	}
	c.mu.Unlock()
	for _, export := range changed {
		c.listeners.Notify(export)
	}
}

// Consumed reports whether a logical cluster of the shard has a binding to an export,
// which may have bound nothing.
func (c *consumed) Consumed(export client.Key) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.counts[export] > 0
}

// FollowConsumers calls f for each export that has a binding, and when one has a first
// binding or has lost the last one, until stop is called. Consumed says which.
func (c *consumed) FollowConsumers(f func(export client.Key)) (stop func()) {
	stop = c.listeners.Add(f)
	c.mu.RLock()
	known := maps.Clone(c.counts)
	c.mu.RUnlock()
	for export := range known {
		f(export)
	}
	return stop
}
