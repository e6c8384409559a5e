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
)

// Build makes what is derived from the objects of a logical cluster. If retry
// is positive, it is made again that long afterwards, when somebody asks.
type Build[D any] func(cluster logicalcluster.Name) (derived D, retry time.Duration, err error)

// Cells holds something derived from the objects of each logical cluster that
// has any. It is made when it is first asked for, never changed, and made again
// after the objects have changed: who has got one may keep it for a request.
type Cells[D any] struct {
	build Build[D]

	mu    sync.RWMutex
	cells map[logicalcluster.Name]*cell[D]
}

type cell[D any] struct {
	once    sync.Once
	derived D
	err     error
	retry   time.Time
}

// NewCells returns Cells that hold nothing: Follow informers.
func NewCells[D any](build Build[D]) *Cells[D] {
	return &Cells[D]{build: build, cells: map[logicalcluster.Name]*cell[D]{}}
}

// Get returns what is derived from the objects of the logical cluster, and
// whether it has any.
func (c *Cells[D]) Get(cluster logicalcluster.Name) (derived D, found bool, err error) {
	c.mu.RLock()
	current, found := c.cells[cluster]
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

// Has says whether the logical cluster has objects.
func (c *Cells[D]) Has(cluster logicalcluster.Name) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, found := c.cells[cluster]
	return found
}

// Len returns the number of logical clusters that have objects.
func (c *Cells[D]) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.cells)
}

func (c *cell[D]) make(build Build[D], cluster logicalcluster.Name) {
	c.once.Do(func() {
		var retry time.Duration
		c.derived, retry, c.err = build(cluster)
		if retry > 0 {
			c.retry = time.Now().Add(retry)
		}
	})
}

// renew replaces old, unless somebody else has.
func (c *Cells[D]) renew(cluster logicalcluster.Name, old *cell[D]) *cell[D] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cells[cluster] == old {
		c.cells[cluster] = &cell[D]{}
	}
	return c.cells[cluster]
}

func (c *Cells[D]) changed(cluster logicalcluster.Name, empty bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if empty {
		delete(c.cells, cluster)
		return
	}
	c.cells[cluster] = &cell[D]{}
}

// Follow renews the entries of Cells whenever objects of the informer change.
// empty says whether a logical cluster has no objects any more; each informer
// that the Cells follow must have been asked.
func Follow[T client.Object, D any](c *Cells[D], informer *client.Informer[T], empty func(cluster logicalcluster.Name) bool) {
	informer.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, _ bool) { c.changed(logicalcluster.From(obj), false) },
		OnUpdate: func(_, obj T) { c.changed(logicalcluster.From(obj), false) },
		OnDelete: func(last T, _ bool) {
			cluster := logicalcluster.From(last)
			c.changed(cluster, empty(cluster))
		},
	})
}

// Empty says whether the informer has no object of the logical cluster.
func Empty[T client.Object](informer *client.Informer[T], cluster logicalcluster.Name) bool {
	return len(informer.Lister().Cluster(cluster).List(nil)) == 0
}
