package shardhealth

import (
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

const (
	namespace = "shardplane"
	subsystem = "shard"
)

var (
	ready = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "ready",
		Help:           "Whether a shard is ready (1) or not (0), by its name, where the controllers of root's shard run. Of shards that send no heartbeats there is none.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"name"})
	used = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "used_percent",
		Help:           "How much of the nearest of its limits a shard uses, in percent, by its name, where the controllers of root's shard run.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"name"})
)

//nolint:gochecknoinits // metrics are registered once for the process, as component-base does it
func init() { legacyregistry.MustRegister(ready, used) }

// note has the metrics say what a Shard says.
func note(shard *corev1alpha1.Shard) {
	if !conditions.Has(shard, conditionsv1alpha1.ReadyCondition) {
		deleteMetrics(shard.Name)
		return
	}
	value := 0.0
	if shardload.Unready(shard) == "" {
		value = 1
	}
	ready.WithLabelValues(shard.Name).Set(value)
	if load, known := shardload.OfShard(shard); known {
		used.WithLabelValues(shard.Name).Set(float64(load.Percent()))
	}
}

func deleteMetrics(shard string) {
	ready.Delete(map[string]string{"name": shard})
	used.Delete(map[string]string{"name": shard})
}
