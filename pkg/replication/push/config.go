package push

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// Name is the name of the controller in logs and metrics.
	Name = "replication"

	checkpointTimeout = 10 * time.Second
	// maxWrites limits the concurrent writes of replicas.
	maxWrites = 16
	// waitLogInterval is the interval of log messages about waiting.
	waitLogInterval = 10 * time.Second

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
	// Table contains the replicated resources. It must be used by one controller only.
	Table *replication.Table
	// Relay is set if Local is another cache server with the replicas of the shard.
	Relay *Relay
	// CheckpointInterval is the minimum interval of checkpoints. The maximum is five times as long.
	CheckpointInterval time.Duration
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
	c.CheckpointInterval = cmp.Or(c.CheckpointInterval, defaultCheckpointInterval)
	c.DigestInterval = cmp.Or(c.DigestInterval, defaultDigestInterval)
	c.AlertInterval = cmp.Or(c.AlertInterval, defaultAlertInterval)
	c.RemovalInterval = cmp.Or(c.RemovalInterval, defaultRemovalInterval)
	return c, nil
}

func (c Config) replicas() *client.Factory { return c.Cache.Shard(c.Shard) }

// Relay configures a Controller that relays a shard from another cache server, except objects of its region.
type Relay struct {
	// Via are the cache servers through which the replicas come, starting with the one that the shard pushes to.
	Via []string
	// Checkpoints are the checkpoints of all shards on the cache server that is relayed from.
	Checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
}

type checkpointClient = client.Client[*replicationcheckpoints.ReplicationCheckpoint, *replicationcheckpoints.ReplicationCheckpointList]

func checkpointClientOf(replicas *client.Factory) *checkpointClient {
	return replicationcheckpoints.Checkpoints.In(replicas.Cluster(replicationcheckpoints.Cluster.Path()))
}

// readCheckpoint returns the checkpoint, or nil if there is none.
func readCheckpoint(ctx context.Context, from *checkpointClient) (*replicationcheckpoints.ReplicationCheckpoint, error) {
	cp, err := from.Get(ctx, replicationcheckpoints.Name, metav1.GetOptions{})
	switch {
	case isObjectNotFound(err, replicationcheckpoints.Name):
		return nil, nil //nolint:nilnil // not found
	case err != nil:
		return nil, err
	}
	return cp, nil
}

// isObjectNotFound distinguishes a missing object from a resource that is not served.
func isObjectNotFound(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name
}

const (
	untilAcknowledged = "acknowledged"
	untilCheckpoint   = "checkpoint"
)

type metrics struct {
	operations *prometheus.CounterVec
	objects    *prometheus.GaugeVec
	pending    *prometheus.GaugeVec
	restarts   *prometheus.CounterVec
	lag        *prometheus.HistogramVec
	repairs    *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	return &metrics{
		operations: instruments.NewCounterVec(registerer, "shardplane_replication_operations_total",
			"Writes to the cache server, by cache, resource, operation (create, update, delete) and result (success, conflict, error).", "cache", "resource", "operation", "result"),
		objects: instruments.NewGaugeVec(registerer, "shardplane_replication_objects",
			"Replicas that the cache server has acknowledged to the shard, by cache and resource.", "cache", "resource"),
		pending: instruments.NewGaugeVec(registerer, "shardplane_replication_initial_pending",
			"Objects that the initial synchronization has not replicated yet, by cache and resource. 0 afterwards.", "cache", "resource"),
		restarts: instruments.NewCounterVec(registerer, "shardplane_replication_restarts_total",
			"Restarts of the replication because a server had other data than before, e.g. a cache server that lost its data, by cache and resource.", "cache", "resource"),
		lag: instruments.NewHistogramVec(registerer, []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}, "shardplane_replication_lag_seconds",
			"Time from a change of an object on the shard until the cache server has acknowledged it (until=acknowledged), and until the shard has observed there a checkpoint that covers it (until=checkpoint), by cache, resource and until.",
			"cache", "resource", "until"),
		repairs: instruments.NewCounterVec(registerer, "shardplane_replication_repairs_total",
			"Wrong replicas that were found by digests and repaired, by cache, resource and problem (missing, different, orphaned).", "cache", "resource", "problem"),
	}
}

func result(err error) string {
	switch {
	case err == nil:
		return "success"
	case apierrors.IsConflict(err):
		return "conflict"
	default:
		return "error"
	}
}

// cachedResources is the common label value of all CachedResources.
const cachedResources = "cachedresources"
