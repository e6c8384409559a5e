package frontproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

const (
	metricsNamespace = "shardplane"
	metricsSubsystem = "frontproxy"
)

type metrics struct {
	requestsTotal    *prometheus.CounterVec
	requestSeconds   *prometheus.HistogramVec
	requestsInFlight *prometheus.GaugeVec
	upstreamErrors   *prometheus.CounterVec
	indexWaits       *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	return &metrics{
		requestsTotal: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "requests_total",
			Help: "[ALPHA] Requests answered, by shard (empty for those the front-proxy answered itself) and status code.",
		}, []string{"shard", "code"})),
		requestSeconds: instruments.Register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "request_duration_seconds",
			Help:    "[ALPHA] Time to answer requests other than watches and upgraded connections, by shard.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"shard"})),
		requestsInFlight: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "requests_in_flight",
			Help: "[ALPHA] Requests being served, by kind: short or long (watches and upgraded connections).",
		}, []string{"kind"})),
		upstreamErrors: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "upstream_errors_total",
			Help: "[ALPHA] Requests that a shard did not answer, by shard and reason: unreachable (nothing was sent) or broken (the connection failed later).",
		}, []string{"shard", "reason"})),
		indexWaits: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "index_waits_total",
			Help: "[ALPHA] Requests for logical clusters that were unknown at first, by result: found, gone (the client left), refused or crowded (too many waited already).",
		}, []string{"result"})),
	}
}
