package issuers

import (
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
)

// places bound how many there are of something at a time, in all and of each logical cluster.
type places struct {
	all, each int

	mu    sync.Mutex
	taken int
	homes map[logicalcluster.Name]*home
}

// home is a logical cluster that has places.
type home struct {
	taken int
	// turn has room for whose token is being verified.
	turn chan struct{}
}

func newPlaces(all, each int) *places {
	return &places{all: all, each: each, homes: map[logicalcluster.Name]*home{}}
}

// take takes a place for a logical cluster, or returns nil where there is none.
func (p *places) take(cluster logicalcluster.Name) *home {
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

// give gives a place back that was taken.
func (p *places) give(cluster logicalcluster.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	h := p.homes[cluster]
	if h.taken--; h.taken == 0 {
		delete(p.homes, cluster)
	}
}
