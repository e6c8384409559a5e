package replicas

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/shardplane/shardplane/pkg/client"
)

// checkpointMaxAge is the maximum age of checkpoints that are reused.
const checkpointMaxAge = time.Second

// checkpointTimeout is the time in which a cache server must return the checkpoints.
const checkpointTimeout = 30 * time.Second

// ReadCheckpoints reads the checkpoints of the shards on a cache server, or nil if it does not support them.
type ReadCheckpoints func(ctx context.Context, cache *client.Factory) (map[string]Checkpoint, error)

// Cache is a cache server from which the replicas of other shards are read. Informers of its Factory keep objects that
// are missing only because the cache server lags behind.
type Cache struct {
	name            string
	factory         *client.Factory
	readCheckpoints ReadCheckpoints

	// reading is a semaphore for reads, and protects last and lastRead.
	reading  chan struct{}
	last     map[string]Checkpoint
	lastRead time.Time

	mu sync.Mutex
	// known are the latest checkpoints of the shards.
	known   map[string]Checkpoint
	removed func(shard string) bool
}

// NewCache returns a cache server. Its name is used in logs and errors.
func NewCache(name string, cache *client.Factory, checkpoints ReadCheckpoints) *Cache {
	return &Cache{
		name: name, factory: cache, readCheckpoints: checkpoints, reading: make(chan struct{}, 1),
		known: map[string]Checkpoint{}, removed: func(string) bool { return false },
	}
}

// SetRemoved sets a function, before informers run, that reports whether a shard was removed permanently.
func (c *Cache) SetRemoved(removed func(shard string) bool) { c.removed = removed }

// Note records a checkpoint of a shard that was received from the cache server.
func (c *Cache) Note(shard string, checkpoint Checkpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(shard, checkpoint)
}

func (c *Cache) note(shard string, checkpoint Checkpoint) {
	if known, ok := c.known[shard]; ok {
		checkpoint = known.later(checkpoint)
	}
	c.known[shard] = checkpoint
}

func (c *Cache) checkpoint(shard string) (Checkpoint, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	checkpoint, ok := c.known[shard]
	return checkpoint, ok
}

func (c *Cache) checkpoints() map[string]Checkpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.known)
}

// shardsWith returns the shards whose checkpoints contain a resource.
func (c *Cache) shardsWith(resource string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var shards []string
	for shard, checkpoint := range c.known {
		if _, named := checkpoint.Versions[resource]; named {
			shards = append(shards, shard)
		}
	}
	return shards
}

// currentCheckpoints returns the checkpoints on the cache server. They were read at most checkpointMaxAge before the
// call. They were also read after the given time, at which the data may have been replaced. They are not older than
// the known ones. Calls during a read share the next one, because a slow cache server takes longer than
// checkpointMaxAge.
func (c *Cache) currentCheckpoints(ctx context.Context, after time.Time) (map[string]Checkpoint, error) {
	called, known := time.Now(), c.checkpoints()
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !c.lastRead.IsZero() && (!c.lastRead.Before(called) || called.Sub(c.lastRead) < checkpointMaxAge && c.lastRead.After(after) && c.allReached(c.last, known)) {
		return c.last, nil
	}
	now := time.Now()
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
	defer cancel()
	checkpoints, err := c.readCheckpoints(ctx, c.factory)
	if err != nil {
		return nil, fmt.Errorf("failed to read the checkpoints of the shards in cache %s: %w", c.name, err)
	}
	c.last, c.lastRead = checkpoints, now
	c.mu.Lock()
	defer c.mu.Unlock()
	for shard, checkpoint := range checkpoints {
		c.note(shard, checkpoint)
	}
	return checkpoints, nil
}

// allReached reports whether checkpoints reach the others, for all shards.
func (c *Cache) allReached(checkpoints, others map[string]Checkpoint) bool {
	for shard, other := range others {
		if checkpoint, ok := checkpoints[shard]; !c.removed(shard) && (!ok || !checkpoint.reaches(other)) {
			return false
		}
	}
	return true
}

// Checkpoint is written by a shard: the cache contains everything up to these versions.
type Checkpoint struct {
	// Epoch changes when the shard is restored from an older backup: versions of two epochs cannot be compared.
	Epoch string
	// Versions are resourceVersions of the shard, by resource and group.
	Versions map[string]string
	// Partial is set for shards in another region, of which the cache has global objects only.
	Partial bool
}

// compareEpochs orders epochs by the time in UUIDs of version 7. Other epochs cannot be ordered: then the first one is
// assumed to be later, because a restored shard has a new epoch.
func compareEpochs(epoch, known string) int {
	if epoch == known {
		return 0
	}
	a, err := uuid.Parse(epoch)
	b, other := uuid.Parse(known)
	if err == nil && other == nil && a.Version() == 7 && b.Version() == 7 {
		return strings.Compare(a.String(), b.String())
	}
	return 1
}

// reaches reports whether everything in another checkpoint is included.
func (m Checkpoint) reaches(other Checkpoint) bool {
	order := compareEpochs(m.Epoch, other.Epoch)
	if order < 0 || m.Partial && !other.Partial {
		return false
	}
	for resource, version := range other.Versions {
		has, named := m.Versions[resource]
		if !named || order == 0 && older(has, version) {
			return false
		}
	}
	return true
}

// later merges two checkpoints that were received in this order.
func (m Checkpoint) later(other Checkpoint) Checkpoint {
	switch order := compareEpochs(other.Epoch, m.Epoch); {
	case order < 0:
		return m
	case order > 0:
		return other
	}
	both := Checkpoint{Epoch: m.Epoch, Versions: maps.Clone(m.Versions), Partial: m.Partial && other.Partial}
	for resource, version := range other.Versions {
		if has, named := both.Versions[resource]; !named || older(has, version) {
			if both.Versions == nil {
				both.Versions = map[string]string{}
			}
			both.Versions[resource] = version
		}
	}
	return both
}

// older reports whether one version of a shard is before another; the empty version is before all others.
func older(version, than string) bool {
	if version == "" || than == "" {
		return version == "" && than != ""
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
