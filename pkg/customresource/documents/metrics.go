package documents

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// documentSets grow with the sets of definitions that there are in logical clusters, not
// with logical clusters.
var documentSets = metrics.NewCounter(&metrics.CounterOpts{
	Namespace: "shardplane", Subsystem: "custom_resources", Name: "document_sets_total",
	Help:           "Sets of definitions of which discovery and OpenAPI documents were made. One is kept while clients ask for it.",
	StabilityLevel: metrics.ALPHA,
})

// Metrics are registered once for the process, as component-base does it.
func init() {
	legacyregistry.MustRegister(documentSets)
}
