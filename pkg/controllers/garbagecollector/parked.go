package garbagecollector

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// parked are items that cannot be judged or written until the APIs that their logical cluster serves change.
type parked struct {
	mu    sync.Mutex
	items map[logicalcluster.Name]map[Item]struct{}
	count int
}

func (p *parked) add(item Item) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cluster := item.LogicalCluster()
	in := p.items[cluster]
	if in == nil {
		in = map[Item]struct{}{}
		if p.items == nil {
			p.items = map[logicalcluster.Name]map[Item]struct{}{}
		}
		p.items[cluster] = in
	}
	if _, known := in[item]; !known {
		in[item] = struct{}{}
		p.count++
	}
}

func (p *parked) take(cluster logicalcluster.Name) []Item {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := p.items[cluster]
	delete(p.items, cluster)
	p.count -= len(in)
	return slices.Collect(maps.Keys(in))
}

func (p *parked) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func (p *parked) remove(item Item) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == 0 {
		return
	}
	cluster := item.LogicalCluster()
	in := p.items[cluster]
	if _, known := in[item]; !known {
		return
	}
	delete(in, item)
	p.count--
	if len(in) == 0 {
		delete(p.items, cluster)
	}
}

type holding struct {
	gauge prometheus.Gauge

	mu    sync.Mutex
	until time.Time
	// items contains the UIDs; empty if the object could not be read.
	items map[Item]types.UID
}

// wait returns the remaining delay for an object.
func (h *holding) wait(item Item, uid types.UID) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if of, held := h.items[item]; !held || of != "" && of != uid {
		return 0
	}
	remaining := time.Until(h.until)
	if remaining <= 0 {
		h.items = nil
		h.gauge.Set(0)
	}
	return max(remaining, 0)
}

func (h *holding) set(until time.Time, items map[Item]types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until, h.items = until, items
	h.gauge.Set(float64(len(items)))
}
