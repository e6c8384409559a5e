package garbagecollector

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// action is what the collector does with an object.
type action string

const (
	actionDelete    action = "delete"
	actionReference action = "reference"
	actionFinalizer action = "finalizer"
)

var (
	attempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "shardplane", Subsystem: "garbage_collector", Name: "attempts_total",
		Help:           "What the garbage collector has tried to do with objects: delete them, remove or change references to owners, or remove its finalizers, by result.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"action", "result"})
	referencesGauge = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "shardplane", Subsystem: "garbage_collector", Name: "references",
		Help:           "References to owners that the garbage collector knows, where it runs.",
		StabilityLevel: metrics.ALPHA,
	})
	parkedGauge = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "shardplane", Subsystem: "garbage_collector", Name: "parked",
		Help:           "Objects that are not judged, or not written, because their logical cluster does not serve their kind or one of their owners'.",
		StabilityLevel: metrics.ALPHA,
	})
	heldGauge = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "shardplane", Subsystem: "garbage_collector", Name: "held",
		Help:           "Objects from before the garbage collector first ran, which it deletes when its initial delay has passed.",
		StabilityLevel: metrics.ALPHA,
	})
)

func init() {
	legacyregistry.MustRegister(attempts, referencesGauge, parkedGauge, heldGauge)
}

func count(a action, err error) {
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
	attempts.WithLabelValues(string(a), result).Inc()
}
