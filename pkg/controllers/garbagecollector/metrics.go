package garbagecollector

import (
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/instruments"
)

// action is what the collector does with an object.
type action string

const (
	actionDelete    action = "delete"
	actionReference action = "reference"
	actionFinalizer action = "finalizer"
)

type metrics struct {
	attempts   *prometheus.CounterVec
	references prometheus.Gauge
	parked     prometheus.Gauge
	held       prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		attempts: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "shardplane", Subsystem: "garbage_collector", Name: "attempts_total",
			Help: "[ALPHA] What the garbage collector has tried to do with objects: delete them, remove or change references to owners, or remove its finalizers, by result.",
		}, []string{"action", "result"})),
		references: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "garbage_collector", Name: "references",
			Help: "[ALPHA] References to owners that the garbage collector knows, where it runs.",
		})),
		parked: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "garbage_collector", Name: "parked",
			Help: "[ALPHA] Objects that are not judged, or not written, because their logical cluster does not serve their kind or one of their owners'.",
		})),
		held: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "garbage_collector", Name: "held",
			Help: "[ALPHA] Objects from before the garbage collector first ran, which it deletes when its initial delay has passed.",
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
