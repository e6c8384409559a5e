package issuers

import (
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
)

// slots limits concurrent operations, in total and per logical cluster.
type slots struct {
	all, each int

	mu    sync.Mutex
	taken int
	homes map[logicalcluster.Name]*home
}

// home is a logical cluster with operations in progress.
type home struct {
	taken int
	// turn is a semaphore for the verification of a token.
	turn chan struct{}
}

func newSlots(all, each int) *slots {
	return &slots{all: all, each: each, homes: map[logicalcluster.Name]*home{}}
}

// take acquires a slot for a logical cluster, or returns nil.
func (p *slots) take(cluster logicalcluster.Name) *home {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.homes[cluster]
	if h == nil {
		h = &home{turn: make(chan struct{}, 1)}
	}
	if p.taken == p.all || h.taken == p.each {
		return nil
	}
	p.taken++
	h.taken++
	p.homes[cluster] = h
	return h
}

// give releases a slot.
func (p *slots) give(cluster logicalcluster.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	h := p.homes[cluster]
	if h.taken--; h.taken == 0 {
		delete(p.homes, cluster)
	}
}
