package frontproxy

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	metricsNamespace = "shardplane"
	metricsSubsystem = "frontproxy"
)

// Metrics of the process; a second front-proxy in the same process, as in
// tests, shares them.
var (
	requestsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "requests_total",
		Help:           "Requests answered, by shard (empty for those the front-proxy answered itself) and status code.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"shard", "code"})
	requestSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "request_duration_seconds",
		Help:           "Time to answer requests other than watches and upgraded connections, by shard.",
		Buckets:        []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		StabilityLevel: metrics.ALPHA,
	}, []string{"shard"})
	requestsInFlight = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "requests_in_flight",
		Help:           "Requests being served, by kind: short or long (watches and upgraded connections).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"kind"})
	upstreamErrors = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "upstream_errors_total",
		Help:           "Requests that a shard did not answer, by shard and reason: unreachable (nothing was sent) or broken (the connection failed later).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"shard", "reason"})
	indexSize = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "index_entries",
		Help:           "Size of the index, by kind: shards, logicalclusters or workspaces.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"kind"})
	indexWaits = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "index_waits_total",
		Help:           "Requests for logical clusters that were unknown at first, by result: found, gone (the client left), refused or crowded (too many waited already).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})

	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(requestsTotal, requestSeconds, requestsInFlight, upstreamErrors, indexSize, indexWaits)
	})
)
