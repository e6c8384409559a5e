// Package percluster contains the state of admission plugins per logical cluster, and adapters for upstream's
// plugins, which expect a single cluster.
//
// A logical cluster without objects of a kind must have no entry, so that a request in it costs one map
// lookup.
package percluster

import (
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
)

// Build derives a value from the objects of a logical cluster. If retry is positive, the value is rebuilt on
// the first access after that time.
type Build[D any] func(cluster logicalcluster.Name) (derived D, retry time.Duration, err error)

// Cache contains a value derived from the objects of each logical cluster that has any. A value is built on
// first access and again after a change of the objects. It is immutable, so a request may keep using it.
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

// NewCache returns an empty Cache; call Follow to fill it.
func NewCache[D any](build Build[D]) *Cache[D] {
	return &Cache[D]{build: build, entries: map[logicalcluster.Name]*entry[D]{}}
}

// Get returns the value for a logical cluster, and whether the logical cluster has objects.
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

// Has reports whether a logical cluster has objects.
func (c *Cache[D]) Has(cluster logicalcluster.Name) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, found := c.entries[cluster]
	return found
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

// renew replaces old unless another request has replaced it.
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

// Follow rebuilds the entries of a Cache when objects of the informer change. empty reports whether a logical
// cluster has no objects in any of the informers of the Cache.
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

// Empty reports whether the informer has no objects of the logical cluster.
func Empty[T client.Object](informer *replicas.Dual[T], cluster logicalcluster.Name) bool {
	return len(informer.In(cluster)) == 0
}
