package replication

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	metricsNamespace = "shardplane"
	metricsSubsystem = "replication"

	untilAcknowledged = "acknowledged"
	untilMarked       = "marked"
)

var (
	operations = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "operations_total",
		Help:           "Writes to the cache server, by cache, resource, operation (create, update, delete, release) and result (success, conflict, error).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"cache", "resource", "operation", "result"})
	objects = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "objects",
		Help:           "Replicas that the cache server has acknowledged to the shard, by cache, resource.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"cache", "resource"})
	pending = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "initial_pending",
		Help:           "Objects that the running initial synchronization has still to replicate, by cache, resource; 0 afterwards.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"cache", "resource"})
	restarts = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "restarts_total",
		Help:           "How often objects and replicas were read anew because a server had other data than was known of it, as a cache server that lost its own, by cache, resource.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"cache", "resource"})
	lag = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "lag_seconds",
		Help:           "How long a change of an object takes from when the shard tells of it until the cache server has acknowledged it, and until a mark has come back from there that covers it, by cache, resource and until (acknowledged, marked).",
		Buckets:        []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
		StabilityLevel: metrics.ALPHA,
	}, []string{"cache", "resource", "until"})
	repairs = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "repairs_total",
		Help:           "Replicas that digests have shown to be wrong, and that were put right, by cache, resource and problem (missing, different, left over).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"cache", "resource", "problem"})
	troubles = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "cache_trouble",
		Help:           "1 while something is wrong with a cache server that the shard uses, by cache and reason (Unreachable, Refused, NotACacheServer, SameServer, Full); no series otherwise. The shard's log says what to do.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"cache", "reason"})
	differences = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "differences",
		Help:           "Replicas that the last complete comparison found missing, different or left over, by cache, resource.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"cache", "resource"})
)

//nolint:gochecknoinits // metrics are registered once for the process, as component-base does it
func init() {
	legacyregistry.MustRegister(operations, objects, pending, restarts, lag, repairs, differences, troubles)
	legacyregistry.CustomMustRegister(observers)
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

// deleteMetrics takes back the gauges of a resource that is not replicated to a cache server any more.
func (m *mirror) deleteMetrics() {
	if m.counted() == m.name() {
		for _, until := range []string{untilAcknowledged, untilMarked} {
			lag.Delete(map[string]string{"cache": m.config.CacheName, "resource": m.name(), "until": until})
		}
	}
	labels := map[string]string{"cache": m.config.CacheName, "resource": m.name()}
	objects.Delete(labels)
	pending.Delete(labels)
	differences.Delete(labels)
}
