package limits

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var refusedReplicated = metrics.NewCounterVec(&metrics.CounterOpts{
	Namespace:      "shardplane",
	Subsystem:      "replicated",
	Name:           "refused_total",
	Help:           "Writes that were refused since a logical cluster has as much of a kind as may be replicated to the cache server, by resource.",
	StabilityLevel: metrics.ALPHA,
}, []string{"resource"})

//nolint:gochecknoinits // metrics are registered once for the process, as component-base does it
func init() { legacyregistry.MustRegister(refusedReplicated) }
