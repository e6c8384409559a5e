package shards

import "github.com/prometheus/client_golang/prometheus"

// metrics collects how many shards are connected and missing.
type metrics struct {
	connected, missing *prometheus.Desc
	count              func() (connected, missing int)
}

func newMetrics(set string, count func() (int, int)) *metrics {
	labels := prometheus.Labels{"set": set}
	return &metrics{
		connected: prometheus.NewDesc("shardplane_shards_connected", "Connected shards, by name of the set of shards.", nil, labels),
		missing:   prometheus.NewDesc("shardplane_shards_missing", "Shards that are unreachable or cannot be watched, by name of the set of shards.", nil, labels),
		count:     count,
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- m.connected
	descriptions <- m.missing
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(collected chan<- prometheus.Metric) {
	connected, missing := m.count()
	collected <- prometheus.MustNewConstMetric(m.connected, prometheus.GaugeValue, float64(connected))
	collected <- prometheus.MustNewConstMetric(m.missing, prometheus.GaugeValue, float64(missing))
}
