package workspaceindex

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
)

// waiters are woken by changes of what their lookups have seen, and of nothing else but
// what has the same hash by chance.
type waiters struct {
	// some is how many there are.
	some atomic.Int64

	mu sync.Mutex
	by map[uint64]map[*waiter]struct{}
}

// waiter is one who waits.
type waiter struct {
	changed chan struct{}
	on      []uint64
}

// step is a step of a lookup: from a logical cluster to the one that a segment leads to, or,
// without a segment, to where it is.
func step(cluster logicalcluster.Name, segment string) uint64 {
	hash := maphash.String(seed, cluster.String())
	if segment == "" {
		return hash
	}
	return hash*31 ^ maphash.String(seed, segment)
}

// Changed returns a channel that receives something after the result of Lookup of a path may
// have changed, until done is called. To wait for a result, call it before the Lookup.
func (x *Index) Changed(path string) (changed <-chan struct{}, done func()) {
	w := x.waiters.enter()
	x.follow(w, path)
	return w.changed, func() { x.waiters.leave(w) }
}

// WorkspaceChanged is Changed for a Workspace, by its parent and name, and whatever is
// announced of that.
func (x *Index) WorkspaceChanged(parent logicalcluster.Name, name string) (changed <-chan struct{}, done func()) {
	w := x.waiters.enter()
	x.waiters.add(w, step(parent, name))
	return w.changed, func() { x.waiters.leave(w) }
}

// follow has w wait for the steps of a lookup, each before it is looked at: what changes after
// that is told.
func (x *Index) follow(w *waiter, path string) {
	first, rest, more := cutFirst(path)
	cluster := logicalcluster.Name(first)
	for more {
		var segment string
		segment, rest, more = strings.Cut(rest, separator)
		x.waiters.add(w, step(cluster, segment))
		n := x.node(cluster.String())
		if n == nil {
			return
		}
		l := x.link(n, segment)
		switch {
		case l != nil && l.target != nil:
			cluster = l.target.name
		case l == nil || more || !l.more().mounted:
			return
		}
	}
	x.waiters.add(w, step(cluster, ""))
}

func (s *waiters) enter() *waiter {
	s.some.Add(1)
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

func (s *waiters) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, on := range w.on {
		delete(s.by[on], w)
		if len(s.by[on]) == 0 {
			delete(s.by, on)
		}
	}
	s.some.Add(-1)
}

// wake tells those who wait for a step.
func (s *waiters) wake(cluster logicalcluster.Name, segment string) {
	if s.some.Load() == 0 {
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
