package push

import (
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/instruments"
)

const (
	metricsNamespace = "shardplane"
	metricsSubsystem = "replication"

	untilAcknowledged = "acknowledged"
	untilMarked       = "marked"
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
		operations: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "operations_total",
			Help:      "[ALPHA] Writes to the cache server, by cache, resource, operation (create, update, delete) and result (success, conflict, error).",
		}, []string{"cache", "resource", "operation", "result"})),
		objects: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "objects",
			Help:      "[ALPHA] Replicas that the cache server has acknowledged to the shard, by cache, resource.",
		}, []string{"cache", "resource"})),
		pending: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "initial_pending",
			Help:      "[ALPHA] Objects that the running initial synchronization has still to replicate, by cache, resource; 0 afterwards.",
		}, []string{"cache", "resource"})),
		restarts: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "restarts_total",
			Help:      "[ALPHA] How often objects and replicas were read anew because a server had other data than was known of it, as a cache server that lost its own, by cache, resource.",
		}, []string{"cache", "resource"})),
		lag: instruments.Register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "lag_seconds",
			Help:      "[ALPHA] How long a change of an object takes from when the shard tells of it until the cache server has acknowledged it, and until a mark has come back from there that covers it, by cache, resource and until (acknowledged, marked).",
			Buckets:   []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"cache", "resource", "until"})),
		repairs: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "repairs_total",
			Help:      "[ALPHA] Replicas that digests have shown to be wrong, and that were put right, by cache, resource and problem (missing, different, left over).",
		}, []string{"cache", "resource", "problem"})),
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

// cachedResources is what all cached resources are counted as.
const cachedResources = "cachedresources"
