package connections

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

// Values of the label of open.
const (
	anonymous     = "anonymous"
	authenticated = "authenticated"
)

type metrics struct {
	open   *prometheus.GaugeVec
	closed prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		open: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "connections", Name: "open",
			Help: "[ALPHA] Connections of clients, by state: authenticated once a user has sent a request, and anonymous before.",
		}, []string{"state"})),
		closed: instruments.Register(registerer, prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "shardplane", Subsystem: "connections", Name: "closed_total",
			Help: "[ALPHA] Anonymous connections that were closed because there were more than --limit anonymous-connections.",
		})),
	}
}
