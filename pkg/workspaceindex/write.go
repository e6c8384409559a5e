package workspaceindex

import (
	"cmp"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
)

// UpsertShard announces a shard and the URL to reach it at.
func (x *Index) UpsertShard(name, baseURL string) {
	defer x.begin()()
	s := x.shard(name)
	if !s.known {
		s.known = true
		x.stats.Shards++
	}
	s.url.Store(&baseURL)
}

// DeleteShard forgets a shard and everything it announced.
func (x *Index) DeleteShard(name string) {
	defer x.begin()()
	if s, ok := x.shards[name]; ok && s.known {
		x.stats.Shards--
	}
	delete(x.shards, name)
	x.retainWorkspaces(name, func(logicalcluster.Name, string) bool { return false })
	x.retainLogicalClusters(name, func(logicalcluster.Name) bool { return false })
}

// RetainLogicalClusters takes back what a shard announced about the logical
// clusters that it does not hold. It looks at the whole index.
func (x *Index) RetainLogicalClusters(shard string, holds func(name logicalcluster.Name) bool) {
	defer x.begin()()
	x.retainLogicalClusters(shard, holds)
}

func (x *Index) retainLogicalClusters(shard string, holds func(name logicalcluster.Name) bool) {
	x.clusters.Range(func(_, value any) bool {
		if n := value.(*node); !holds(n.name) {
			x.setPlacement(n, shard, nil)
		}
		return true
	})
}

// RetainWorkspaces takes back what a shard announced about the workspaces that
// it does not hold. It looks at the whole index.
func (x *Index) RetainWorkspaces(shard string, holds func(parent logicalcluster.Name, name string) bool) {
	defer x.begin()()
	x.retainWorkspaces(shard, holds)
}

func (x *Index) retainWorkspaces(shard string, holds func(parent logicalcluster.Name, name string) bool) {
	x.clusters.Range(func(_, value any) bool {
		n := value.(*node)
		n.children.Range(func(segment, _ any) bool {
			if name := segment.(string); !holds(n.name, name) {
				x.setLink(n, name, shard, nil)
			}
			return true
		})
		return true
	})
}

// UpsertLogicalCluster announces a logical cluster that a shard holds.
func (x *Index) UpsertLogicalCluster(shard string, c LogicalCluster) {
	defer x.begin()()
	n := x.use(c.Name)
	defer x.release(n)
	x.setPlacement(n, shard, &placement{LogicalCluster: c, shard: x.shard(shard)})
}

// DeleteLogicalCluster takes an announcement back.
func (x *Index) DeleteLogicalCluster(shard string, name logicalcluster.Name) {
	defer x.begin()()
	if n := x.node(name.String()); n != nil {
		x.setPlacement(n, shard, nil)
	}
}

// UpsertWorkspace announces a workspace that a shard holds.
func (x *Index) UpsertWorkspace(shard string, w Workspace) {
	defer x.begin()()
	n := x.use(w.Parent)
	defer x.release(n)
	l := &link{shard: shard, phase: w.Phase, owner: w.Owner}
	if w.Cluster != "" {
		l.target = x.use(w.Cluster)
	}
	if w.Mounted {
		l.mount = &w.Mount
	}
	x.setLink(n, w.Name, shard, l)
}

// DeleteWorkspace takes an announcement back.
func (x *Index) DeleteWorkspace(shard string, parent logicalcluster.Name, name string) {
	defer x.begin()()
	if n := x.node(parent.String()); n != nil {
		x.setLink(n, name, shard, nil)
	}
}

func (x *Index) shard(name string) *shard {
	s, ok := x.shards[name]
	if !ok {
		s = &shard{name: name}
		x.shards[name] = s
	}
	return s
}

// setPlacement replaces what a shard announced about a node; nil takes it back.
func (x *Index) setPlacement(n *node, shard string, announced *placement) {
	var all []placement
	for p := n.place.Load(); p != nil; p = p.next {
		if p.shard.name != shard {
			all = append(all, *p)
			continue
		}
		x.stats.LogicalClusters--
		defer x.release(n)
	}
	if announced != nil {
		all = append(all, *announced)
		x.stats.LogicalClusters++
		n.uses++
	}
	slices.SortFunc(all, comparePlacements)
	var list *placement
	for i := range slices.Backward(all) {
		all[i].next = list
		list = &all[i]
	}
	before := validShard(n)
	n.place.Store(list)
	if validShard(n) == before {
		return
	}
	// The links that count are those of the shard that holds the node.
	n.children.Range(func(segment, value any) bool {
		if head := value.(*link); head.next != nil {
			n.children.Store(segment, sortLinks(n, links(head)))
		}
		return true
	})
}

// setLink replaces what a shard announced about a workspace; nil takes it back.
func (x *Index) setLink(n *node, segment, shard string, announced *link) {
	var all []link
	if value, ok := n.children.Load(segment); ok {
		all = links(value.(*link))
	}
	for i, l := range all {
		if l.shard != shard {
			continue
		}
		all = slices.Delete(all, i, i+1)
		x.stats.Workspaces--
		if l.target != nil {
			defer x.release(l.target)
		}
		defer x.release(n)
		break
	}
	if announced != nil {
		all = append(all, *announced)
		x.stats.Workspaces++
		n.uses++
	}
	if len(all) == 0 {
		n.children.Delete(segment)
		return
	}
	n.children.Store(segment, sortLinks(n, all))
}

func links(head *link) []link {
	var all []link
	for l := head; l != nil; l = l.next {
		all = append(all, *l)
	}
	return all
}

// sortLinks makes a list of links, the valid one first: that of the shard which
// holds the parent, then by the name of the shard.
func sortLinks(parent *node, all []link) *link {
	home := validShard(parent)
	slices.SortFunc(all, func(a, b link) int {
		return cmp.Or(compareTrue(a.shard == home, b.shard == home), cmp.Compare(a.shard, b.shard))
	})
	var list *link
	for i := range slices.Backward(all) {
		all[i].next = list
		list = &all[i]
	}
	return list
}

func validShard(n *node) string {
	if p := n.place.Load(); p != nil {
		return p.shard.name
	}
	return ""
}

// comparePlacements orders announcements of one logical cluster by different
// shards, the valid one first. The object's own word about its shard counts
// most; then what is whole counts more than what is coming or going.
func comparePlacements(a, b placement) int {
	return cmp.Or(
		-cmp.Compare(a.claim(), b.claim()),
		compareTrue(!a.Migrating, !b.Migrating),
		compareTrue(!a.Deleting, !b.Deleting),
		compareTrue(a.ready(), b.ready()),
		-cmp.Compare(a.Created, b.Created),
		cmp.Compare(a.shard.name, b.shard.name),
	)
}

// claim is 2 for an object that says it is on the shard which announces it, 1
// for one that says nothing and 0 for one that says it is elsewhere.
func (p placement) claim() int {
	switch p.Shard {
	case p.shard.name:
		return 2
	case "":
		return 1
	default:
		return 0
	}
}

func (p placement) ready() bool { return p.Phase == corev1alpha1.LogicalClusterPhaseReady }

// compareTrue orders true before false.
func compareTrue(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}
