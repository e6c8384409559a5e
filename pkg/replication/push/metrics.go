package push

import (
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/instruments"
)

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
