package fairness

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

// tenants is everybody else.
const tenants = "tenants"

const (
	metricsNamespace = "shardplane"
	metricsSubsystem = "fairness"
)

// metrics are by priority. They have no label for the tenant, of which there may be any number.
type metrics struct {
	executingSeats  *prometheus.GaugeVec
	waitingRequests *prometheus.GaugeVec
	pausedRequests  prometheus.Gauge
	dispatched      *prometheus.CounterVec
	rejected        *prometheus.CounterVec
	waitSeconds     *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		executingSeats: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "executing_seats",
			Help: "[ALPHA] Seats taken by requests that execute, by priority: exempt or tenants.",
		}, []string{"priority"})),
		waitingRequests: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "waiting_requests",
			Help: "[ALPHA] Requests that wait for their turn, by priority.",
		}, []string{"priority"})),
		pausedRequests: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "paused_requests",
			Help: "[ALPHA] Requests that wait for webhooks, whose seats are free meanwhile.",
		})),
		dispatched: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "dispatched_requests_total",
			Help: "[ALPHA] Requests whose turn came, by priority.",
		}, []string{"priority"})),
		rejected: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "rejected_requests_total",
			Help: "[ALPHA] Requests answered with 429, by priority and reason: queue-full or time-out.",
		}, []string{"priority", "reason"})),
		waitSeconds: instruments.Register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "wait_duration_seconds",
			Help:    "[ALPHA] Time that requests waited for their turn, by priority.",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15},
		}, []string{"priority"})),
	}
}

// executing counts a request that executes until the returned function is
// called.
func (m metrics) executing(priority string, seats int) (done func()) {
	m.dispatched.WithLabelValues(priority).Inc()
	gauge := m.executingSeats.WithLabelValues(priority)
	gauge.Add(float64(seats))
	return func() { gauge.Add(-float64(seats)) }
}

func (m metrics) waiting(waits bool) {
	if waits {
		m.waitingRequests.WithLabelValues(tenants).Inc()
		return
	}
	m.waitingRequests.WithLabelValues(tenants).Dec()
}
