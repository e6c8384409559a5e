package shardhealth

import (
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

const (
	namespace = "shardplane"
	subsystem = "shard"
)

type metrics struct {
	ready *prometheus.GaugeVec
	used  *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		ready: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "ready",
			Help: "[ALPHA] Whether a shard is ready (1) or not (0), by its name, where the controllers of root's shard run. Of shards that send no heartbeats there is none.",
		}, []string{"name"})),
		used: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "used_percent",
			Help: "[ALPHA] How much of the nearest of its limits a shard uses, in percent, by its name, where the controllers of root's shard run.",
		}, []string{"name"})),
	}
}

// note has the metrics say what a Shard says.
func (m metrics) note(shard *corev1alpha1.Shard) {
	if !conditions.Has(shard, conditionsv1alpha1.ReadyCondition) {
		m.delete(shard.Name)
		return
	}
	value := 0.0
	if shardload.Unready(shard) == "" {
		value = 1
	}
	m.ready.WithLabelValues(shard.Name).Set(value)
	if load, known := shardload.OfShard(shard); known {
		m.used.WithLabelValues(shard.Name).Set(float64(load.Percent()))
	}
}

func (m metrics) delete(shard string) {
	m.ready.Delete(map[string]string{"name": shard})
	m.used.Delete(map[string]string{"name": shard})
}
