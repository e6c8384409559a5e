package replicas

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

// marksMaxAge is the maximum age of marks that are reused.
const marksMaxAge = time.Second

// marksTimeout is the time that a cache server has to return the marks.
const marksTimeout = 30 * time.Second

// ReadMarks reads the marks of the shards on a cache server. They are nil where the cache server knows no marks.
type ReadCheckpoints func(ctx context.Context, cache *client.Factory) (map[string]Checkpoint, error)

// Cache is a cache server from which the replicas of other shards are read, and whose data may be lost or
// restored from a backup. Informers that its Factory makes compare the marks on the cache server with those that
// were known, and keep what is only missing because the cache server is behind.
type Cache struct {
	name            string
	factory         *client.Factory
	readCheckpoints func(ctx context.Context) (map[string]Checkpoint, error)

	// reading is held by sending, while marks are read and for last and lastRead.
	reading  chan struct{}
	last     map[string]Checkpoint
	lastRead time.Time

	mu sync.Mutex
	// known are the latest marks of the shards.
	known map[string]Checkpoint
	// removed reports whether a shard was removed for good.
	removed func(shard string) bool
}

// NewCache returns a cache server. Its name is used in logs and errors.
func NewCache(name string, cache *client.Factory, marks ReadCheckpoints) *Cache {
	c := newCache(name, func(ctx context.Context) (map[string]Checkpoint, error) { return marks(ctx, cache) })
	c.factory = cache
	return c
}

func newCache(name string, readCheckpoints func(ctx context.Context) (map[string]Checkpoint, error)) *Cache {
	return &Cache{
		name: name, readCheckpoints: readCheckpoints, reading: make(chan struct{}, 1),
		known: map[string]Checkpoint{}, removed: func(string) bool { return false },
	}
}

// SetRemoved sets what reports whether a shard was removed for good, so that missing replicas and marks of it are
// gone. It must be called before informers run.
func (c *Cache) SetRemoved(removed func(shard string) bool) { c.removed = removed }

// Note notes a mark of a shard that was seen on the cache server.
func (c *Cache) Note(shard string, mark Checkpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(shard, mark)
}

func (c *Cache) note(shard string, mark Checkpoint) {
	if known, ok := c.known[shard]; ok {
		mark = known.later(mark)
	}
	c.known[shard] = mark
}

// marked returns the latest mark of a shard.
func (c *Cache) marked(shard string) (Checkpoint, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mark, ok := c.known[shard]
	return mark, ok
}

// marks returns the latest marks of the shards.
func (c *Cache) marks() map[string]Checkpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.known)
}

// naming returns the shards whose marks name a resource.
func (c *Cache) naming(resource string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var shards []string
	for shard, mark := range c.known {
		if _, named := mark.Versions[resource]; named {
			shards = append(shards, shard)
		}
	}
	return shards
}

// currentMarks returns the marks on the cache server. They are at most marksMaxAge older than the call, were read
// after a time, since which the data may have been replaced, and are not older than the latest known ones. Calls
// during a reading share the next one, because a slow cache server takes longer than marksMaxAge.
func (c *Cache) currentMarks(ctx context.Context, after time.Time) (map[string]Checkpoint, error) {
	called, known := time.Now(), c.marks()
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !c.lastRead.IsZero() && (!c.lastRead.Before(called) || called.Sub(c.lastRead) < marksMaxAge && c.lastRead.After(after) && c.allReached(c.last, known)) {
		return c.last, nil
	}
	now := time.Now()
	ctx, cancel := context.WithTimeout(ctx, marksTimeout)
	defer cancel()
	marks, err := c.readCheckpoints(ctx)
	if err != nil {
		return nil, fmt.Errorf("the marks of the shards in cache %s: %w", c.name, err)
	}
	c.last, c.lastRead = marks, now
	c.mu.Lock()
	defer c.mu.Unlock()
	for shard, mark := range marks {
		c.note(shard, mark)
	}
	return marks, nil
}

// allReached reports whether marks of all shards reach others.
func (c *Cache) allReached(marks, others map[string]Checkpoint) bool {
	for shard, other := range others {
		if mark, ok := marks[shard]; !c.removed(shard) && (!ok || !mark.reaches(other)) {
			return false
		}
	}
	return true
}
