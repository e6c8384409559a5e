package relay

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
)

const (
	metricsNamespace = "shardplane"
	metricsSubsystem = "relay"
)

type metrics struct {
	up      *prometheus.GaugeVec
	relayed *prometheus.GaugeVec
	skew    *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		up: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "up",
			Help:      "[ALPHA] Whether the cache server that is relayed from, by its name, answers and is the one that it should be; the log says what is wrong.",
		}, []string{"from"})),
		relayed: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "shards",
			Help:      "[ALPHA] Shards whose replicas are relayed from a cache server, by its name.",
		}, []string{"from"})),
		skew: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metricsNamespace,
			Subsystem: metricsSubsystem,
			Name:      "clock_skew_seconds",
			Help:      "[ALPHA] By how much the clock of the cache server that is relayed from, by its name, is behind, give or take a second.",
		}, []string{"from"})),
	}
}

func (m metrics) delete(from string) {
	for _, gauge := range []*prometheus.GaugeVec{m.up, m.relayed, m.skew} {
		gauge.Delete(map[string]string{"from": from})
	}
}
