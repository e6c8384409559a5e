package push

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// Name is the controller's name in catalogues, logs and metrics.
	Name = "replication"

	// markTimeout bounds the requests for one mark.
	markTimeout = 10 * time.Second
	// waitLogInterval is how often the log says what the controller waits for.
	waitLogInterval = 10 * time.Second

	defaultWrites         = 16
	defaultMarkInterval   = time.Second
	defaultDigestInterval = 15 * time.Second
	// defaultAlertInterval and defaultRemovalInterval are those of outages.
	defaultAlertInterval   = time.Second
	defaultRemovalInterval = 10 * time.Second
)

// Config says what to replicate from where to where.
type Config struct {
	// Shard is the name of the shard whose objects are pushed.
	Shard string
	// Local is the shard itself, as a system:masters user.
	Local *client.Factory
	// Cache is the cache server, as a system:masters user, and CacheName its name in logs and
	// metrics, replication.DefaultCacheName if that is empty.
	Cache     *client.Factory
	CacheName string
	// Table is what is replicated, a table of the Defaults if nil. It may change
	// while the controller runs, and is of no other controller.
	Table *replication.Table
	// Relay is set where Local is not the shard, but its replicas on another cache server, and
	// the Cache gets those.
	Relay *Relay
	// MarkInterval is the least time between two marks. Five times as much is the longest.
	CheckpointInterval time.Duration
	// Writes is how many replicas are written at a time.
	Writes int
	// DigestInterval is how often the digests of all replicas are compared with those that the
	// cache server has, if nothing else gives reason to.
	DigestInterval time.Duration
	// AlertInterval is the first pause between two attempts while it does not answer.
	AlertInterval time.Duration
	// RemovalInterval is the longest pause between two attempts to delete the replicas of a resource
	// that was removed from the table.
	RemovalInterval time.Duration

	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer

	metrics *metrics
}

func (c Config) complete() (Config, error) {
	if c.Shard == "" || c.Local == nil || c.Cache == nil {
		return c, errors.New("replication needs the shard's name, a client of the shard and a client of the cache server")
	}
	c.metrics = newMetrics(c.Metrics)
	if c.CacheName == "" {
		c.CacheName = replication.DefaultCacheName
	}
	if c.Table == nil {
		table, err := replication.NewTable(replication.Defaults()...)
		if err != nil {
			return c, err
		}
		c.Table = table
	}
	if c.Writes <= 0 {
		c.Writes = defaultWrites
	}
	if c.CheckpointInterval <= 0 {
		c.CheckpointInterval = defaultMarkInterval
	}
	if c.DigestInterval <= 0 {
		c.DigestInterval = defaultDigestInterval
	}
	if c.AlertInterval <= 0 {
		c.AlertInterval = defaultAlertInterval
	}
	if c.RemovalInterval <= 0 {
		c.RemovalInterval = defaultRemovalInterval
	}
	return c, nil
}

// replicas returns the access to the shard's own part of the cache server.
func (c Config) replicas() *client.Factory { return c.Cache.Shard(c.Shard) }

// Relay says that a Controller relays the replicas of a shard from another cache server. They are
// the same there and here, but for those that stay in their region.
type Relay struct {
	// Via are the cache servers by which the replicas come, the one that the shard pushes to
	// first, and the one that they are relayed from last.
	Via []string
	// Marks are those of all shards on the cache server that is relayed from.
	Checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
}

// marksIn returns the client of the mark of one shard on a cache server.
func marksIn(replicas *client.Factory) *client.Client[*replicationcheckpoints.ReplicationCheckpoint, *replicationcheckpoints.ReplicationCheckpointList] {
	return replicationcheckpoints.Checkpoints.In(replicas.Cluster(replicationcheckpoints.Cluster.Path()))
}
