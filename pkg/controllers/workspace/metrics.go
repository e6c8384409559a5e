package workspace

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/instruments"
)

func newOrphans(registerer prometheus.Registerer) *orphans {
	return &orphans{count: map[client.Key]int{}, gauge: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "shardplane", Subsystem: "workspace", Name: "orphaned_logical_clusters",
		Help: "[ALPHA] Logical clusters whose Workspace does not exist, and which are kept because they are old or not empty, where the controllers of their shard run.",
	}))}
}

// orphans are how many logical clusters are kept without their Workspace, by the key of that.
// The controllers of Workspaces and of placement add to one gauge.
type orphans struct {
	gauge prometheus.Gauge

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
	o.gauge.Add(float64(n - before))
	o.count[key] = n
	if n == 0 {
		delete(o.count, key)
	}
}
