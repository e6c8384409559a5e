package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// Name is the controller's name in catalogues, logs and metrics.
	Name = "replication"

	defaultWorkers       = 8
	defaultProbeInterval = 15 * time.Second
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
	// Resources is the table of what is replicated; Table() by default.
	Resources []Resource
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
	if c.Resources == nil {
		c.Resources = Table()
	}
	c.Resources = slices.Clone(c.Resources)
	for i := range c.Resources {
		c.Resources[i].path = c.pathOf
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
	mirrors []*mirror
}

// New returns the controller. It does nothing until it runs.
func New(config Config) (*Controller, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	c := &Controller{}
	for _, resource := range config.Resources {
		if _, twice := Lookup(c.resources(), resource.GroupResource()); twice {
			return nil, fmt.Errorf("%s is in the replication table twice", resource.GroupResource())
		}
		c.mirrors = append(c.mirrors, newMirror(config, resource))
	}
	return c, nil
}

// Name returns the controller's name.
func (c *Controller) Name() string { return Name }

// Run replicates until ctx is done and everything it started has ended. It
// waits for either server for as long as it takes; resources do not wait for
// each other.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(c.mirrors))
	for i, m := range c.mirrors {
		wg.Go(func() {
			if errs[i] = m.run(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	<-ctx.Done()
	wg.Wait()
	return errors.Join(errs...)
}

// HasSynced tells whether every object had its replica, and none was left over,
// at some time since the controller last began to follow the cache server.
func (c *Controller) HasSynced() bool {
	for _, m := range c.mirrors {
		if !m.progress.complete() {
			return false
		}
	}
	return true
}

func (c *Controller) resources() []Resource {
	resources := make([]Resource, 0, len(c.mirrors))
	for _, m := range c.mirrors {
		resources = append(resources, m.resource)
	}
	return resources
}
