package replication

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// Name is the controller's name in catalogues, logs and metrics.
	Name = "replication"

	defaultWorkers       = 8
	defaultProbeInterval = time.Minute
	defaultAuditInterval = 10 * time.Minute
)

// Config says what to replicate from where to where.
type Config struct {
	// Shard is the name of the shard whose objects are pushed.
	Shard string
	// Local is the shard itself, as a system:masters user.
	Local *client.Factory
	// Cache is the cache server, as a system:masters user.
	Cache *client.Factory
	// Table is what is replicated, a table of the Defaults if nil. It may change
	// while the controller runs.
	Table *Table
	// LogicalClusters are those of the shard, with their canonical paths, which
	// replicas say: other shards cannot find them out. Nil leaves paths out.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Workers is how many objects of a resource are written at a time.
	Workers int
	// ProbeInterval is how often the controller asks whether the cache server
	// still has the data that it followed, with one small request per resource.
	ProbeInterval time.Duration
	// AuditInterval is how often all replicas are compared with their objects,
	// past the informers.
	AuditInterval time.Duration
}

func (c Config) complete() (Config, error) {
	if c.Shard == "" || c.Local == nil || c.Cache == nil {
		return c, errors.New("replication needs the shard's name, a client of the shard and a client of the cache server")
	}
	if c.Table == nil {
		table, err := NewTable(Defaults()...)
		if err != nil {
			return c, err
		}
		c.Table = table
	}
	if c.Workers <= 0 {
		c.Workers = defaultWorkers
	}
	if c.ProbeInterval <= 0 {
		c.ProbeInterval = defaultProbeInterval
	}
	if c.AuditInterval <= 0 {
		c.AuditInterval = defaultAuditInterval
	}
	return c, nil
}

// pathOf returns the canonical path of a logical cluster; empty where it is not
// known.
func (c Config) pathOf(cluster logicalcluster.Name) string {
	if c.LogicalClusters == nil {
		return ""
	}
	lc, err := c.LogicalClusters.Lister().Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	if err != nil {
		return ""
	}
	return lc.Annotations[core.LogicalClusterPathAnnotationKey]
}

// replicas returns the access to the shard's own part of the cache server.
func (c Config) replicas() *client.Factory { return c.Cache.Shard(c.Shard) }

// Controller keeps the replicas of one shard's objects true. It implements
// reconcile.Runnable.
type Controller struct {
	config Config

	mu sync.Mutex
	// mirrors are those of the table's lines, as far as they run.
	mirrors map[schema.GroupResource]*mirror
}

// New returns the controller. It does nothing until it runs.
func New(config Config) (*Controller, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	return &Controller{config: config, mirrors: map[schema.GroupResource]*mirror{}}, nil
}

// Name returns the controller's name.
func (c *Controller) Name() string { return Name }

// Run replicates until ctx is done and everything it started has ended. It
// waits for either server for as long as it takes; resources do not wait for
// each other.
func (c *Controller) Run(parent context.Context) error {
	ctx, fail := context.WithCancelCause(parent)
	defer fail(nil)
	for ctx.Err() == nil {
		lines, changed := c.config.Table.snapshot()
		c.follow(ctx, lines, fail)
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	c.follow(ctx, nil, fail)
	if parent.Err() != nil {
		return nil // stopped, which is no failure
	}
	return context.Cause(ctx)
}

// follow starts the mirrors of new lines and ends those of lines that are no
// more.
func (c *Controller) follow(ctx context.Context, lines map[schema.GroupResource]*line, fail context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for resource, m := range c.mirrors {
		if lines[resource] != m.line {
			m.stop()
			delete(c.mirrors, resource)
		}
	}
	for resource, l := range lines {
		if c.mirrors[resource] == nil {
			m := newMirror(c.config, l)
			m.start(ctx, fail)
			c.mirrors[resource] = m
		}
	}
}

// HasSynced reports whether every object had its replica, and none was left over,
// at some time since the controller last began to follow the cache server.
func (c *Controller) HasSynced() bool {
	lines, _ := c.config.Table.snapshot()
	c.mu.Lock()
	defer c.mu.Unlock()
	for resource := range lines {
		if m := c.mirrors[resource]; m == nil || !m.progress.complete() {
			return false
		}
	}
	return true
}
