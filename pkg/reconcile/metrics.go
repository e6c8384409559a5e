package reconcile

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	failures *prometheus.CounterVec
	panics   *prometheus.CounterVec
	running  *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	factory := promauto.With(registerer)
	return metrics{
		failures: factory.NewCounterVec(prometheus.CounterOpts{
			Namespace: "shardplane",
			Subsystem: "reconcile",
			Name:      "failures_total",
			Help:      "[ALPHA] Reconciliations that failed and are tried again, by controller. Conflicts do not count.",
		}, []string{"controller"}),
		panics: factory.NewCounterVec(prometheus.CounterOpts{
			Namespace: "shardplane",
			Subsystem: "reconcile",
			Name:      "panics_total",
			Help:      "[ALPHA] Reconciliations that panicked and are tried again, by controller.",
		}, []string{"controller"}),
		running: factory.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "shardplane",
			Subsystem: "reconcile",
			Name:      "controllers",
			Help:      "[ALPHA] 1 for each controller that runs in this process, with its placement: leader or every replica.",
		}, []string{"controller", "placement"}),
	}
}

type metricsKey struct{}

// WithMetrics returns a context for Run of controllers, or of groups of them, whose metrics are registered with registerer.
// It panics if they are already. Without it nobody sees them.
func WithMetrics(ctx context.Context, registerer prometheus.Registerer) context.Context {
	return context.WithValue(ctx, metricsKey{}, newMetrics(registerer))
}

// metricsFrom returns the metrics of ctx, or such as nobody sees.
func metricsFrom(ctx context.Context) metrics {
	m, ok := ctx.Value(metricsKey{}).(metrics)
	if !ok {
		return newMetrics(nil)
	}
	return m
}
