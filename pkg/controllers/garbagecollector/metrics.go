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
		attempts: instruments.NewCounterVec(registerer, "shardplane_garbage_collector_attempts_total",
			"Attempts of the garbage collector to delete objects, to remove or change references to owners, or to remove its finalizers, by action and result.", "action", "result"),
		references: instruments.NewGauge(registerer, "shardplane_garbage_collector_references",
			"References to owners that the garbage collector has observed. Only on the leader."),
		parked: instruments.NewGauge(registerer, "shardplane_garbage_collector_parked",
			"Objects that cannot be processed because their logical cluster does not serve their kind or the kind of an owner."),
		held: instruments.NewGauge(registerer, "shardplane_garbage_collector_held",
			"Objects that existed before the first start of the garbage collector, and that it deletes after its initial delay."),
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
