package limits

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

func newRefusedReplicated(registerer prometheus.Registerer) *prometheus.CounterVec {
	return instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "shardplane",
		Subsystem: "replicated",
		Name:      "refused_total",
		Help:      "[ALPHA] Writes that were refused since a logical cluster has as much of a kind as may be replicated to the cache server, by resource.",
	}, []string{"resource"}))
}
