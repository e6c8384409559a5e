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
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "shardplane", Subsystem: "relay", Name: name, Help: "[ALPHA] " + help}
	}
	return metrics{
		up: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("up",
			"1 if the cache server that is relayed from, by its name, responds and is the expected one; otherwise the log contains the reason.")), []string{"from"})),
		relayed: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("shards",
			"Shards whose replicas are relayed from a cache server, by its name.")), []string{"from"})),
		skew: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("clock_skew_seconds",
			"Difference by which the clock of the cache server that is relayed from, by its name, is behind, with a precision of one second.")), []string{"from"})),
	}
}

func (m metrics) delete(from string) {
	for _, gauge := range []*prometheus.GaugeVec{m.up, m.relayed, m.skew} {
		gauge.Delete(map[string]string{"from": from})
	}
}
