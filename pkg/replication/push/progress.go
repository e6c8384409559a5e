package push

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/client"
)

// progress knows what of the initial synchronization is still to be done, be it
// by the batches or by the controller after them.
type progress struct {
	mu      sync.Mutex
	left    prometheus.Gauge
	started bool
	keys    map[client.Key]struct{}
}

func (p *progress) start(left prometheus.Gauge, keys []client.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.started, p.keys = left, true, make(map[client.Key]struct{}, len(keys))
	for _, key := range keys {
		p.keys[key] = struct{}{}
	}
	left.Set(float64(len(p.keys)))
}

// done says that key has its replica.
func (p *progress) done(key client.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.keys[key]; ok {
		delete(p.keys, key)
		p.left.Set(float64(len(p.keys)))
		if len(p.keys) == 0 {
			p.keys = nil // maps do not shrink
		}
	}
}

func (p *progress) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.keys)
}

func (p *progress) complete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started && len(p.keys) == 0
}
