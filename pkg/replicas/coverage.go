package replicas

import (
	"sync"
	"time"
)

// coverage records the shards of which an informer has everything up to a checkpoint. It has its own lock because
// handlers of the informer use it.
type coverage struct {
	mu sync.Mutex
	// unmarked is set if the cache server does not support checkpoints.
	unmarked bool
	covered  map[string]struct{}
	// lacking is the time since which other shards are not covered.
	lacking map[string]time.Time
}

func (c *coverage) add(shard string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.covered[shard] = struct{}{}
	delete(c.lacking, shard)
}

func (c *coverage) has(shard string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.covered[shard]
	return ok
}

func (c *coverage) setUnmarked(unmarked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unmarked = unmarked
}

// lacks returns the shards that are not covered, and since when.
func (c *coverage) lacks(shards []string) map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unmarked {
		return nil
	}
	var all map[string]time.Time
	for _, shard := range shards {
		if _, ok := c.covered[shard]; ok {
			continue
		}
		if c.lacking[shard].IsZero() {
			c.lacking[shard] = time.Now()
		}
		if all == nil {
			all = map[string]time.Time{}
		}
		all[shard] = c.lacking[shard]
	}
	return all
}
