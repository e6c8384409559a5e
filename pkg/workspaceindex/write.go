package workspaceindex

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
)

// UpsertLogicalCluster announces a logical cluster of a shard.
func (x *Index) UpsertLogicalCluster(shard string, c LogicalCluster) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shard(shard)
	x.announce(c.Name, s, newPlacement(s, c, x.phase(c.Phase)), c.Type)
}

func (x *Index) announce(name logicalcluster.Name, s *shard, p placement, kind string) {
	n := x.use(name)
	defer x.release(n)
	x.setPlacement(n, s, announcement{placement: p, kind: x.useType(kind)})
}

// DeleteLogicalCluster removes an announcement.
func (x *Index) DeleteLogicalCluster(shard string, name logicalcluster.Name) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := x.node(name.String()); n != nil {
		x.setPlacement(n, x.shard(shard), announcement{})
	}
}

// UpsertWorkspace announces a workspace of a shard.
func (x *Index) UpsertWorkspace(shard string, w Workspace) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.setWorkspace(x.shard(shard), w)
}

func (x *Index) setWorkspace(s *shard, w Workspace) {
	n := x.use(w.Parent)
	defer x.release(n)
	var target *node
	if w.Cluster != "" {
		target = x.use(w.Cluster)
		defer x.release(target)
	}
	x.setLink(n, w.Name, s, newLink(n, target, s, w, x.phase(w.Phase)))
}

// DeleteWorkspace removes an announcement.
func (x *Index) DeleteWorkspace(shard string, parent logicalcluster.Name, name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := x.node(parent.String()); n != nil {
		x.setLink(n, name, x.shard(shard), nil)
	}
}

func (x *Index) shard(name string) *shard {
	s, ok := x.shards[name]
	if ok {
		return s
	}
	before := x.numbers.Load()
	s = &shard{name: strings.Clone(name)}
	x.shards[s.name] = s
	// Lookups read numbers without a lock, so they are not reused. After 65,535, shards share one without a name.
	if len(before.shards) <= math.MaxUint16 {
		s.number = uint16(len(before.shards)) //nolint:gosec // just compared
		x.numbers.Store(&numbers{shards: append(slices.Clone(before.shards), s), phases: before.phases})
	}
	return s
}

// phase returns the number of a phase. The API has few; beyond 255, phases are treated as none.
func (x *Index) phase(phase corev1alpha1.LogicalClusterPhaseType) uint8 {
	before := x.numbers.Load()
	number := slices.Index(before.phases, phase)
	if number < 0 {
		number = len(before.phases)
		if number > math.MaxUint8 {
			return phaseNone
		}
		phase = corev1alpha1.LogicalClusterPhaseType(strings.Clone(string(phase)))
		x.numbers.Store(&numbers{shards: before.shards, phases: append(slices.Clone(before.phases), phase)})
	}
	return uint8(number) //nolint:gosec // just compared
}

// use returns the node of a name, created if necessary, and increments its uses.
func (x *Index) use(name logicalcluster.Name) *node {
	n := x.node(name.String())
	if n == nil {
		n = newNode(name)
		x.clusters.add(n)
	}
	n.uses++
	return n
}

// release decrements the uses of a node, and removes it with the last one.
func (x *Index) release(n *node) {
	n.uses--
	if n.uses == 0 {
		x.clusters.remove(n)
	}
}

func (x *Index) useType(name string) *typeName {
	if name == "" {
		return nil
	}
	t := x.types[name]
	if t == nil {
		t = &typeName{name: strings.Clone(name)}
		x.types[t.name] = t
	}
	t.uses++
	return t
}

func (x *Index) releaseType(t *typeName) {
	if t == nil {
		return
	}
	if t.uses--; t.uses == 0 {
		delete(x.types, t.name)
	}
}

// announced returns a copy of the announcements of a node, the valid one first.
func (x *Index) announced(n *node) []announcement {
	if all, ok := x.announcements[n]; ok {
		return slices.Clone(all)
	}
	if p := n.placement(); p != 0 {
		return []announcement{{p, n.kind.Load(), n.generation}}
	}
	return nil
}

// comparePlacements orders announcements of one logical cluster by several shards, the valid one first.
func (x *Index) comparePlacements(a, b placement) int {
	return cmp.Or(
		-cmp.Compare(a.claim(), b.claim()),
		cmp.Compare(a&placementMigrates, b&placementMigrates),
		cmp.Compare(a&placementDeleting, b&placementDeleting),
		-cmp.Compare(a.ready(), b.ready()),
		-cmp.Compare(a.created(), b.created()),
		cmp.Compare(x.shardNumber(a.shard()).name, x.shardNumber(b.shard()).name),
	)
}

// setPlacement replaces the announcement of a node by a shard; the zero announcement removes it.
func (x *Index) setPlacement(n *node, s *shard, a announcement) {
	h := &s.tallies[LogicalClusters]
	all := x.announced(n)
	same := false
	for i, other := range all {
		if other.shard() != s.number {
			continue
		}
		same = other.placement == a.placement && other.kind == a.kind
		all = slices.Delete(all, i, i+1)
		h.remove(other.generation)
		defer x.releaseType(other.kind)
		defer x.release(n)
		break
	}
	if a.placement != 0 {
		a.generation = h.now
		all = append(all, a)
		h.remember()
		n.uses++
	}
	slices.SortFunc(all, func(a, b announcement) int { return x.comparePlacements(a.placement, b.placement) })
	delete(x.announcements, n)
	if len(all) > 1 {
		x.announcements[n] = all
	}
	before := n.placement().shard()
	var first announcement
	if len(all) > 0 {
		first = all[0]
	}
	n.generation = first.generation
	if same {
		return
	}
	n.kind.Store(first.kind)
	n.validPlacement.Store(uint64(first.placement))
	h.changes++
	if n.placement().shard() != before {
		// Links of the node's shard are preferred.
		for segment, links := range x.contested[n] {
			x.sortLinks(n, segment, x.link(n, segment), slices.Clone(links))
		}
	}
	x.waiters.wake(n.name, "")
}

// setLink replaces the announcement of a workspace by a shard; nil removes it.
func (x *Index) setLink(n *node, segment string, s *shard, l *link) {
	h := &s.tallies[Workspaces]
	valid := x.link(n, segment)
	all := slices.Clone(x.contested[n][segment])
	if all == nil && valid != nil {
		all = []*link{valid}
	}
	for i, other := range all {
		if other.shard != s.number {
			continue
		}
		if l != nil && l.same(other) {
			h.remove(other.generation)
			h.remember()
			other.generation = h.now
			return
		}
		all = slices.Delete(all, i, i+1)
		h.remove(other.generation)
		if other.target != nil {
			defer x.release(other.target)
		}
		defer x.release(n)
		break
	}
	switch {
	case l != nil:
		l.generation = h.now
		all = append(all, l)
		h.remember()
		n.uses++
		if l.target != nil {
			l.target.uses++
		}
	case valid == nil:
		return
	}
	h.changes++
	x.sortLinks(n, segment, valid, all)
}

// sortLinks makes the valid link visible to lookups: the link of the parent's shard, or else the link of the first
// shard by name. valid is the present one, if any.
func (x *Index) sortLinks(parent *node, segment string, valid *link, all []*link) {
	home := parent.placement().shard()
	order := func(l *link) string {
		if l.shard == home {
			return "" // before all names
		}
		return x.shardNumber(l.shard).name
	}
	slices.SortFunc(all, func(a, b *link) int { return cmp.Compare(order(a), order(b)) })
	switch {
	case len(all) == 0 && valid != nil:
		x.links.remove(valid)
	case len(all) == 0:
	case valid == nil:
		x.links.add(all[0])
	case valid != all[0]:
		x.links.replace(valid, all[0])
	}
	if len(all) > 1 {
		if x.contested[parent] == nil {
			x.contested[parent] = map[string][]*link{}
		}
		x.contested[parent][strings.Clone(segment)] = all
	} else if of := x.contested[parent]; of != nil {
		delete(of, segment)
		if len(of) == 0 {
			delete(x.contested, parent)
		}
	}
	x.waiters.wake(parent.name, segment)
}
