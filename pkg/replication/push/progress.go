package push

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/client"
)

// progress tracks the keys of the initial synchronization that are not replicated yet.
type progress struct {
	mu        sync.Mutex
	remaining prometheus.Gauge
	started   bool
	keys      map[client.Key]struct{}
}

func (p *progress) start(remaining prometheus.Gauge, keys []client.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remaining, p.started, p.keys = remaining, true, make(map[client.Key]struct{}, len(keys))
	for _, key := range keys {
		p.keys[key] = struct{}{}
	}
	remaining.Set(float64(len(p.keys)))
}

func (p *progress) done(key client.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.keys[key]; ok {
		delete(p.keys, key)
		p.remaining.Set(float64(len(p.keys)))
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
