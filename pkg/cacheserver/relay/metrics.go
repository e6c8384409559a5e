package relay

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

type metrics struct {
	up      *prometheus.GaugeVec
	relayed *prometheus.GaugeVec
	skew    *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		up: instruments.NewGaugeVec(registerer, "shardplane_relay_up",
			"1 if the source cache server responds and is the expected one, by its name. Otherwise the log contains the reason.", "from"),
		relayed: instruments.NewGaugeVec(registerer, "shardplane_relay_shards",
			"Shards whose replicas are relayed, by the name of the source cache server.", "from"),
		skew: instruments.NewGaugeVec(registerer, "shardplane_relay_clock_skew_seconds",
			"Time by which the clock of the source cache server is behind, to the second, by its name.", "from"),
	}
}

func (m metrics) delete(from string) {
	for _, gauge := range []*prometheus.GaugeVec{m.up, m.relayed, m.skew} {
		gauge.Delete(map[string]string{"from": from})
	}
}
