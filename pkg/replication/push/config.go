package push

import (
	"cmp"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// Name is the name of the controller in logs and metrics.
	Name = "replication"

	checkpointTimeout = 10 * time.Second
	// waitLogInterval is the interval of log messages about waiting.
	waitLogInterval = 10 * time.Second

	defaultWrites             = 16
	defaultCheckpointInterval = time.Second
	defaultDigestInterval     = 15 * time.Second
	// The limits of retries.
	defaultAlertInterval   = time.Second
	defaultRemovalInterval = 10 * time.Second
)

// Config configures a Controller.
type Config struct {
	// Shard is the name of the shard whose objects are pushed.
	Shard string
	// Local is a client of the shard for a system:masters user.
	Local *client.Factory
	// Cache is a client of the cache server for a system:masters user. CacheName is its name in logs and metrics; the
	// default is replication.DefaultCacheName.
	Cache     *client.Factory
	CacheName string
	// Table contains the replicated resources; the default contains replication.Defaults. It may change while the
	// controller is running, and must be used by one controller only.
	Table *replication.Table
	// Relay is set if Local is another cache server with the replicas of the shard.
	Relay *Relay
	// CheckpointInterval is the minimum interval of checkpoints. The maximum is five times as long.
	CheckpointInterval time.Duration
	// Writes limits the concurrent writes of replicas.
	Writes int
	// DigestInterval is the interval of comparisons of digests. Reconnections cause additional comparisons.
	DigestInterval time.Duration
	// AlertInterval is the delay of the first retry if the cache server does not respond.
	AlertInterval time.Duration
	// RemovalInterval is the maximum delay of retries to delete the replicas of a removed resource.
	RemovalInterval time.Duration

	// Metrics registers metrics. Nil registers none.
	Metrics prometheus.Registerer

	metrics *metrics
}

func (c Config) complete() (Config, error) {
	if c.Shard == "" || c.Local == nil || c.Cache == nil {
		return c, errors.New("replication requires the name of the shard, a client of the shard and a client of the cache server")
	}
	c.metrics = newMetrics(c.Metrics)
	c.CacheName = cmp.Or(c.CacheName, replication.DefaultCacheName)
	if c.Table == nil {
		table, err := replication.NewTable(replication.Defaults()...)
		if err != nil {
			return c, err
		}
		c.Table = table
	}
	c.Writes = cmp.Or(c.Writes, defaultWrites)
	c.CheckpointInterval = cmp.Or(c.CheckpointInterval, defaultCheckpointInterval)
	c.DigestInterval = cmp.Or(c.DigestInterval, defaultDigestInterval)
	c.AlertInterval = cmp.Or(c.AlertInterval, defaultAlertInterval)
	c.RemovalInterval = cmp.Or(c.RemovalInterval, defaultRemovalInterval)
	return c, nil
}

func (c Config) replicas() *client.Factory { return c.Cache.Shard(c.Shard) }

// Relay configures a Controller that relays the replicas of a shard from another cache server, except those that stay in
// their region.
type Relay struct {
	// Via are the cache servers through which the replicas come, starting with the one that the shard pushes to.
	Via []string
	// Checkpoints are the checkpoints of all shards on the cache server that is relayed from.
	Checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
}

func checkpointClientOf(replicas *client.Factory) *client.Client[*replicationcheckpoints.ReplicationCheckpoint, *replicationcheckpoints.ReplicationCheckpointList] {
	return replicationcheckpoints.Checkpoints.In(replicas.Cluster(replicationcheckpoints.Cluster.Path()))
}
