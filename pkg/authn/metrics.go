package authn

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

func newReloads(registerer prometheus.Registerer) *prometheus.CounterVec {
	return instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "shardplane", Subsystem: "authentication", Name: "reloads_total",
		Help: "[ALPHA] Files for authentication that were read again because they changed, by what they hold and result: success, or failure (what they held before stays in use).",
	}, []string{"what", "result"}))
}
