package relay

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	metricsNamespace = "shardplane"
	metricsSubsystem = "relay"
)

var (
	up = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "up",
		Help:           "Whether the cache server that is relayed from, by its name, answers and is the one that it should be; the log says what is wrong.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"from"})
	relayed = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "shards",
		Help:           "Shards whose replicas are relayed from a cache server, by its name.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"from"})
	skew = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      metricsNamespace,
		Subsystem:      metricsSubsystem,
		Name:           "clock_skew_seconds",
		Help:           "By how much the clock of the cache server that is relayed from, by its name, is behind, give or take a second.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"from"})
)

//nolint:gochecknoinits // metrics are registered once for the process, as component-base does it
func init() { legacyregistry.MustRegister(up, relayed, skew) }

func deleteMetrics(from string) {
	for _, gauge := range []*metrics.GaugeVec{up, relayed, skew} {
		gauge.Delete(map[string]string{"from": from})
	}
}
