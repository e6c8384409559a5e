package customresource

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// servingInfos grow with schemas, not with the definitions or bindings that have them.
var servingInfos = metrics.NewCounter(&metrics.CounterOpts{
	Namespace: "shardplane", Subsystem: "custom_resources", Name: "serving_infos_total",
	Help:           "Serving infos of schemas that were made. One is kept while the schema is used.",
	StabilityLevel: metrics.ALPHA,
})

// Metrics are registered once for the process, as component-base does it.
func init() {
	legacyregistry.MustRegister(servingInfos)
}
