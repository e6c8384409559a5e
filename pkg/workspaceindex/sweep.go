package workspaceindex

import "slices"

// UpsertShard announces a shard and its URL.
func (x *Index) UpsertShard(name, baseURL string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shard(name).url.Store(&baseURL)
}

// DeleteShard removes a shard and all of its announcements.
func (x *Index) DeleteShard(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.shards[name]
	if !ok {
		return
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

// begin lets generations overflow. An outdated announcement is interpreted as a repeated one only after 65,536
// resyncs without a Sweep. The next Sweep removes it.
func (x *Index) begin(s *shard, kind Kind) {
	s.tallies[kind].now++
	s.tallies[kind].seen = 0
}

func (x *Index) sweep(s *shard, kind Kind) {
	h := &s.tallies[kind]
	switch {
	case h.seen == h.total:
	case kind == Workspaces:
		for _, l := range x.allLinks(func(l *link) bool { return l.shard == s.number && l.generation != h.now }) {
			x.setLink(l.parent, l.name(), s, nil)
		}
	default:
		x.sweepPlacements(s, h.now)
	}
}

// allLinks returns all announcements of workspaces for which a condition is met.
func (x *Index) allLinks(condition func(*link) bool) (links []*link) {
	for l := range x.links.all {
		if condition(l) {
			links = append(links, l)
		}
	}
	for _, of := range x.contested {
		for _, all := range of {
			links = append(links, slices.DeleteFunc(slices.Clone(all[1:]), func(l *link) bool { return !condition(l) })...)
		}
	}
	return links
}

func (x *Index) sweepPlacements(s *shard, now generation) {
	var outdated []*node
	isOutdated := func(a announcement) bool { return a.shard() == s.number && a.generation != now }
	for n := range x.clusters.all {
		valid := announcement{placement: n.placement(), generation: n.generation}
		if valid.placement != 0 && isOutdated(valid) || slices.ContainsFunc(x.announcements[n], isOutdated) {
			outdated = append(outdated, n)
		}
	}
	for _, n := range outdated {
		x.setPlacement(n, s, announcement{})
	}
}
