// Package percluster holds what admission plugins know by logical cluster, and
// shows it to upstream's plugins, which know of one cluster only.
//
// The rule of the package: a logical cluster that has nothing of a kind has no
// entry, and asking about it costs one look into a map.
package percluster

import (
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
)

// Build makes what is derived from the objects of a logical cluster. If retry
// is positive, it is made again that long afterwards, when somebody asks.
type Build[D any] func(cluster logicalcluster.Name) (derived D, retry time.Duration, err error)

// Cache holds something derived from the objects of each logical cluster that
// has any. It is made when it is first asked for, never changed, and made again
// after the objects have changed: who has got one may keep it for a request.
type Cache[D any] struct {
	build Build[D]

	mu      sync.RWMutex
	entries map[logicalcluster.Name]*entry[D]
}

type entry[D any] struct {
	once    sync.Once
	derived D
	err     error
	retry   time.Time
}

// NewCache returns an empty Cache: Follow informers.
func NewCache[D any](build Build[D]) *Cache[D] {
	return &Cache[D]{build: build, entries: map[logicalcluster.Name]*entry[D]{}}
}

// Get returns what is derived from the objects of the logical cluster, and
// whether it has any.
func (c *Cache[D]) Get(cluster logicalcluster.Name) (derived D, found bool, err error) {
	c.mu.RLock()
	current, found := c.entries[cluster]
	c.mu.RUnlock()
	if !found {
		return derived, false, nil
	}
	current.make(c.build, cluster)
	if !current.retry.IsZero() && time.Now().After(current.retry) {
		if current = c.renew(cluster, current); current == nil {
			return derived, false, nil
		}
		current.make(c.build, cluster)
	}
	return current.derived, true, current.err
}

// Has reports whether the logical cluster has objects.
func (c *Cache[D]) Has(cluster logicalcluster.Name) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, found := c.entries[cluster]
	return found
}

// Len returns the number of logical clusters that have objects.
func (c *Cache[D]) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.entries)
}

func (e *entry[D]) make(build Build[D], cluster logicalcluster.Name) {
	e.once.Do(func() {
		var retry time.Duration
		e.derived, retry, e.err = build(cluster)
		if retry > 0 {
			e.retry = time.Now().Add(retry)
		}
	})
}

// renew replaces old, unless somebody else has.
func (c *Cache[D]) renew(cluster logicalcluster.Name, old *entry[D]) *entry[D] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[cluster] == old {
		c.entries[cluster] = &entry[D]{}
	}
	return c.entries[cluster]
}

func (c *Cache[D]) changed(cluster logicalcluster.Name, empty bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if empty {
		delete(c.entries, cluster)
		return
	}
	c.entries[cluster] = &entry[D]{}
}

// Follow renews the entries of a Cache whenever objects of the informer change.
// empty reports whether a logical cluster has no objects any more; it asks each
// informer that the Cache follows.
func Follow[T client.Object, D any](c *Cache[D], informer *replicas.Dual[T], empty func(cluster logicalcluster.Name) bool) {
	informer.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, _ bool) { c.changed(logicalcluster.From(obj), false) },
		OnUpdate: func(_, obj T) { c.changed(logicalcluster.From(obj), false) },
		OnDelete: func(last T, _ bool) {
			cluster := logicalcluster.From(last)
			c.changed(cluster, empty(cluster))
		},
	})
}

// Empty reports whether the informer has no object of the logical cluster.
func Empty[T client.Object](informer *replicas.Dual[T], cluster logicalcluster.Name) bool {
	return len(informer.In(cluster)) == 0
}
