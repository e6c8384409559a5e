package workspace

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/client"
)

var orphansGauge = metrics.NewGauge(&metrics.GaugeOpts{
	Namespace: "shardplane", Subsystem: "workspace", Name: "orphaned_logical_clusters",
	Help:           "Logical clusters whose Workspace does not exist, and which are kept because they are old or not empty, where the controllers of their shard run.",
	StabilityLevel: metrics.ALPHA,
})

//nolint:gochecknoinits // metrics are registered once for the process, as component-base does it
func init() { legacyregistry.MustRegister(orphansGauge) }

// orphans are how many logical clusters are kept without their Workspace, by the key of that.
// All of a process add to one gauge.
type orphans struct {
	mu    sync.Mutex
	count map[client.Key]int
}

// note sets how many those of a key are.
func (o *orphans) note(key client.Key, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.count[key]
	if n == before {
		return
	}
	orphansGauge.Add(float64(n - before))
	if o.count == nil {
		o.count = map[client.Key]int{}
	}
	o.count[key] = n
	if n == 0 {
		delete(o.count, key)
	}
}
