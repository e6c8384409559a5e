package push

import (
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/instruments"
)

const (
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
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "shardplane", Subsystem: "replication", Name: name, Help: "[ALPHA] " + help}
	}
	return &metrics{
		operations: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts(opts("operations_total",
			"Writes to the cache server, by cache, resource, operation (create, update, delete) and result (success, conflict, error).")), []string{"cache", "resource", "operation", "result"})),
		objects: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("objects",
			"Replicas that the cache server has acknowledged to the shard, by cache, resource.")), []string{"cache", "resource"})),
		pending: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("initial_pending",
			"Objects that the initial synchronization has not replicated yet, by cache, resource; 0 afterwards.")), []string{"cache", "resource"})),
		restarts: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts(opts("restarts_total",
			"Restarts of the replication because a server had other data than before, e.g. a cache server that lost its data, by cache, resource.")), []string{"cache", "resource"})),
		lag: instruments.Register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "shardplane",
			Subsystem: "replication",
			Name:      "lag_seconds",
			Help:      "[ALPHA] Time from a change of an object on the shard until the cache server has acknowledged it, and until a checkpoint that covers it was observed there, by cache, resource and until (acknowledged, marked).",
			Buckets:   []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"cache", "resource", "until"})),
		repairs: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts(opts("repairs_total",
			"Wrong replicas that were found by digests and repaired, by cache, resource and problem (missing, different, left over).")), []string{"cache", "resource", "problem"})),
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
