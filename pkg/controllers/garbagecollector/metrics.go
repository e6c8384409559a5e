package garbagecollector

import (
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/instruments"
)

type action string

const (
	actionDelete    action = "delete"
	actionReference action = "reference"
	actionFinalizer action = "finalizer"
)

type metrics struct {
	attempts                 *prometheus.CounterVec
	references, parked, held prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		attempts: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "shardplane", Subsystem: "garbage_collector", Name: "attempts_total",
			Help: "[ALPHA] Number of attempts of the garbage collector to delete objects, to remove or change references to owners, or to remove its finalizers, by result.",
		}, []string{"action", "result"})),
		references: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "garbage_collector", Name: "references",
			Help: "[ALPHA] Number of references to owners that the garbage collector has observed, where it runs.",
		})),
		parked: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "garbage_collector", Name: "parked",
			Help: "[ALPHA] Number of objects that cannot be judged or written because their logical cluster does not serve their kind or the kind of an owner.",
		})),
		held: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "garbage_collector", Name: "held",
			Help: "[ALPHA] Number of objects from before the first start of the garbage collector, which it deletes after its initial delay.",
		})),
	}
}

func (m metrics) count(a action, err error) {
	result := "success"
	switch {
	case err == nil:
	case apierrors.IsConflict(err):
		result = "conflict"
	case apierrors.IsNotFound(err):
		result = "gone"
	default:
		result = "error"
	}
	m.attempts.WithLabelValues(string(a), result).Inc()
}
