package workspaceindex

import "math"

// UpsertShard announces a shard and its URL.
func (x *Index) UpsertShard(name, baseURL string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shard(name)
	if !s.known {
		s.known = true
		x.stats.Shards++
	}
	s.url.Store(&baseURL)
}

// DeleteShard removes a shard and all of its announcements.
func (x *Index) DeleteShard(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.shards[name]
	if !ok {
		return
	}
	if s.known {
		s.known = false
		x.stats.Shards--
	}
	s.url.Store(nil)
	for kind := range kinds {
		x.begin(s, kind)
		x.sweep(s, kind)
	}
}

// Begin starts a full resync of a kind for a shard. Previous announcements stay valid until Sweep.
func (x *Index) Begin(shard string, kind Kind) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.begin(x.shard(shard), kind)
}

// Sweep removes the announcements of a shard that were not repeated since the latest Begin. If there are any, it
// visits the entire index.
func (x *Index) Sweep(shard string, kind Kind) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(x.shard(shard), kind)
}

// Changes counts the changes of a shard's announcements.
func (x *Index) Changes(shard string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shard(shard)
	return s.tallies[LogicalClusters].changes + s.tallies[Workspaces].changes
}

func (x *Index) begin(s *shard, kind Kind) {
	h := &s.tallies[kind]
	if h.now == math.MaxUint16 {
		x.resetGenerations(s, kind)
	}
	h.now++
	h.seen = 0
}

// resetGenerations sets the generations of all announcements of a shard and kind to 0.
func (x *Index) resetGenerations(s *shard, kind Kind) {
	s.tallies[kind].now = 0
	if kind == Workspaces {
		x.eachLink(s, func(l *link) { l.generation = 0 })
		return
	}
	x.eachPlacement(s, func(_ *node, m *generation) { *m = 0 })
}

func (x *Index) sweep(s *shard, kind Kind) {
	h := &s.tallies[kind]
	if h.seen == h.total {
		return
	}
	if kind == Workspaces {
		x.eachLink(s, func(l *link) {
			if l.generation != h.now {
				x.setLink(l.parent, l.name(), s, nil)
			}
		})
		return
	}
	x.eachPlacement(s, func(n *node, m *generation) {
		if *m != h.now {
			x.setPlacement(n, s, announcement{})
		}
	})
}

func (x *Index) eachLink(s *shard, visit func(*link)) {
	var more []*link
	for _, of := range x.contested {
		for _, all := range of {
			for _, l := range all[1:] {
				if l.shard == s.number {
					more = append(more, l)
				}
			}
		}
	}
	for l := range x.links.all {
		if l.shard == s.number {
			visit(l)
		}
	}
	for _, l := range more {
		visit(l)
	}
}

func (x *Index) eachPlacement(s *shard, visit func(*node, *generation)) {
	several := map[*node]*generation{}
	for n, all := range x.places {
		for i := range all {
			if all[i].shard() == s.number {
				several[n] = &all[i].generation
			}
		}
	}
	for n := range x.clusters.all {
		if x.places[n] == nil && n.placement() != 0 && validShard(n) == s.number {
			visit(n, &n.generation)
		}
	}
	for n, m := range several {
		visit(n, m)
	}
}
