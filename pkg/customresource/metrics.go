package customresource

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

// newServingInfos returns a counter that grows with schemas, not with the definitions or bindings that have them.
func newServingInfos(registerer prometheus.Registerer) prometheus.Counter {
	return instruments.Register(registerer, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "shardplane", Subsystem: "custom_resources", Name: "serving_infos_total",
		Help: "[ALPHA] Serving infos of schemas that were made. One is kept while the schema is used.",
	}))
}
