package workspaceindex

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
)

// waiters are woken by changes of the steps of their lookups, and of steps with the same hash.
type waiters struct {
	count atomic.Int64

	mu sync.Mutex
	by map[uint64]map[*waiter]struct{}
}

type waiter struct {
	changed chan struct{}
	on      []uint64
}

// step is the hash of a step of a lookup: from a logical cluster to the target of a segment or, without a segment, to
// its shard.
func step(cluster logicalcluster.Name, segment string) uint64 {
	hash := maphash.String(seed, cluster.String())
	if segment == "" {
		return hash
	}
	return hash*31 ^ maphash.String(seed, segment)
}

func (s *waiters) register() *waiter {
	s.count.Add(1)
	return &waiter{changed: make(chan struct{}, 1)}
}

func (s *waiters) add(w *waiter, on uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[uint64]map[*waiter]struct{}{}
	}
	if s.by[on] == nil {
		s.by[on] = map[*waiter]struct{}{}
	}
	s.by[on][w] = struct{}{}
	w.on = append(w.on, on)
}

func (s *waiters) unregister(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, on := range w.on {
		delete(s.by[on], w)
		if len(s.by[on]) == 0 {
			delete(s.by, on)
		}
	}
	s.count.Add(-1)
}

func (s *waiters) wake(cluster logicalcluster.Name, segment string) {
	if s.count.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.by[step(cluster, segment)] {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}
