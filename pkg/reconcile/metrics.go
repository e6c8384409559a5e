package reconcile

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	failures = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      "shardplane",
		Subsystem:      "reconcile",
		Name:           "failures_total",
		Help:           "Reconciliations that failed and are tried again, by controller. Conflicts do not count.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"controller"})
	panics = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      "shardplane",
		Subsystem:      "reconcile",
		Name:           "panics_total",
		Help:           "Reconciliations that panicked and are tried again, by controller.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"controller"})
	running = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      "shardplane",
		Subsystem:      "reconcile",
		Name:           "controllers",
		Help:           "1 for each controller that runs in this process, with its placement: on the leader, on every replica, or dividable, which is on the leader, too, for now.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"controller", "placement"})
)

// Metrics are registered once for the process, as component-base does it.
func init() {
	legacyregistry.MustRegister(failures, panics, running)
}
