package documents

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

// newMadeSets returns a counter that grows with the sets of definitions that there are in logical clusters, not with
// logical clusters.
func newMadeSets(registerer prometheus.Registerer) prometheus.Counter {
	return instruments.Register(registerer, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "shardplane", Subsystem: "custom_resources", Name: "document_sets_total",
		Help: "[ALPHA] Sets of definitions of which discovery and OpenAPI documents were made. One is kept while clients ask for it.",
	}))
}
