package fairness

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	metricsNamespace = "shardplane"
	metricsSubsystem = "fairness"
)

// Metrics of the process, by priority. They have no label for the tenant, of
// which there may be any number.
var (
	executingSeats = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "executing_seats",
		Help:           "Seats taken by requests that execute, by priority: exempt or tenants.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"priority"})
	waitingRequests = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "waiting_requests",
		Help:           "Requests that wait for their turn, by priority.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"priority"})
	pausedRequests = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "paused_requests",
		Help:           "Requests that wait for webhooks, whose seats are free meanwhile.",
		StabilityLevel: metrics.ALPHA,
	})
	dispatched = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "dispatched_requests_total",
		Help:           "Requests whose turn came, by priority.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"priority"})
	rejected = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "rejected_requests_total",
		Help:           "Requests answered with 429, by priority and reason: queue-full or time-out.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"priority", "reason"})
	waitSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "wait_duration_seconds",
		Help:           "Time that requests waited for their turn, by priority.",
		Buckets:        []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15},
		StabilityLevel: metrics.ALPHA,
	}, []string{"priority"})

	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(executingSeats, waitingRequests, pausedRequests, dispatched, rejected, waitSeconds)
	})
)

// executing counts a request that executes until the returned function is
// called.
func executing(priority string, seats int) (done func()) {
	dispatched.WithLabelValues(priority).Inc()
	gauge := executingSeats.WithLabelValues(priority)
	gauge.Add(float64(seats))
	return func() { gauge.Add(-float64(seats)) }
}

func waiting(waits bool) {
	if waits {
		waitingRequests.WithLabelValues(tenants).Inc()
		return
	}
	waitingRequests.WithLabelValues(tenants).Dec()
}
