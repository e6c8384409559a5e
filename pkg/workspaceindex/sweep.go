package workspaceindex

import "math"

// UpsertShard announces a shard and the URL to reach it at.
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

// DeleteShard forgets a shard and everything it announced.
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

// Begin says that a shard announces all that it has of a kind from now on. What it has
// announced before stays until Sweep.
func (x *Index) Begin(shard string, kind Kind) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.begin(x.shard(shard), kind)
}

// Sweep takes back what the shard has not announced again since the latest Begin. It looks at
// the whole index if there is any.
func (x *Index) Sweep(shard string, kind Kind) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(x.shard(shard), kind)
}

// Changes counts the changes of what a shard has announced.
func (x *Index) Changes(shard string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shard(shard)
	return s.held[LogicalClusters].changes + s.held[Workspaces].changes
}

func (x *Index) begin(s *shard, kind Kind) {
	h := &s.held[kind]
	if h.now == math.MaxUint16 {
		x.remark(s, kind)
	}
	h.now++
	h.seen = 0
}

// remark has all that a shard announced of a kind be of generation 0.
func (x *Index) remark(s *shard, kind Kind) {
	s.held[kind].now = 0
	if kind == Workspaces {
		x.eachLink(s, func(l *link) { l.mark = 0 })
		return
	}
	x.eachPlacement(s, func(_ *node, m *mark) { *m = 0 })
}

func (x *Index) sweep(s *shard, kind Kind) {
	h := &s.held[kind]
	if h.seen == h.total {
		return
	}
	if kind == Workspaces {
		x.eachLink(s, func(l *link) {
			if l.mark != h.now {
				x.setLink(l.parent, l.name(), s, nil)
			}
		})
		return
	}
	x.eachPlacement(s, func(n *node, m *mark) {
		if *m != h.now {
			x.setPlacement(n, s, announcement{})
		}
	})
}

// eachLink calls visit with the links that a shard announced.
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

// eachPlacement calls visit with the nodes that a shard announced, and the marks of that.
func (x *Index) eachPlacement(s *shard, visit func(*node, *mark)) {
	several := map[*node]*mark{}
	for n, all := range x.places {
		for i := range all {
			if all[i].shard() == s.number {
				several[n] = &all[i].mark
			}
		}
	}
	for n := range x.clusters.all {
		if x.places[n] == nil && n.placement() != 0 && validShard(n) == s.number {
			visit(n, &n.mark)
		}
	}
	for n, m := range several {
		visit(n, m)
	}
}
