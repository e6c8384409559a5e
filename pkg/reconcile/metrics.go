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
)

// Metrics are registered once for the process, as component-base does it.
func init() {
	legacyregistry.MustRegister(failures, panics)
}
