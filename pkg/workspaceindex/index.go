// Package workspaceindex resolves the path or name of a logical cluster to its name and shard, in memory.
//
// The index contains announcements of shards: LogicalClusters (names) and Workspaces (segments of paths):
//
//	root:a:b   node root ──a──► node 2x1k… ──b──► node 9f3m… ── placed on ──► shard-1
//	<name>:b                    node 2x1k… ──b──► …
//	user:<user>:b              node of the user's home ──b──► …
//	<name>                                       node 9f3m… ── placed on ──► shard-1
//
// Announcements of different shards may contradict each other, e.g. during a migration. The result depends only on
// the present announcements, not on their order. Lookups take no lock and do not allocate. Writers are serialized.
package workspaceindex

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// separator joins the names of a path.
	separator = ":"
	// systemName is the prefix of the names of system clusters.
	systemName = "system"
)

// Outcome is the result of a lookup.
type Outcome int

const (
	// Unknown means that the name or path is not announced.
	Unknown Outcome = iota
	// Pending means that a Workspace of that path is announced, but no logical cluster for it yet.
	Pending
	// Unavailable means that the phase of the logical cluster, or of its Workspace, is Unavailable.
	Unavailable
	// Found means that the logical cluster is available.
	Found
	// Mounted means that the Workspace is a mount with a URL, without its own logical cluster.
	Mounted
	// Unmounted means that the Workspace is a mount without a usable URL.
	Unmounted
)

// String returns a word for messages.
func (o Outcome) String() string {
	return [...]string{"Unknown", "Pending", "Unavailable", "Found", "Mounted", "Unmounted"}[o]
}

// Target is the location of a logical cluster.
type Target struct {
	Cluster logicalcluster.Name
	// Shard is the name of its shard.
	Shard string
	// URL is the base URL of the shard; empty if the shard was not announced.
	URL   string
	Phase corev1alpha1.LogicalClusterPhaseType
	// Type is path and name of the workspace type.
	Type string
	// Created is the creation time of the LogicalCluster in seconds.
	Created int64
	// Owner is the owner of the Workspace, also for Pending.
	Owner Owner
	// Mount is the URL of a mount. The other fields describe the logical cluster of its Workspace.
	Mount string
}

// Index resolves paths. It is safe for concurrent use.
type Index struct {
	clusters table[node, string, *node]
	links    table[link, linkKey, *link]
	// numbers maps numbers to shards and phases. Numbers are not reused.
	numbers atomic.Pointer[numbers]
	waiters waiters

	// mu serializes writers. It protects the following fields.
	mu     sync.Mutex
	shards map[string]*shard
	types  map[string]*typeName
	// announcements are those of logical clusters that several shards announce, and contested those of workspaces. The
	// first one is valid, and the only one that lookups use.
	announcements map[*node][]announcement
	contested     map[*node]map[string][]*link
}

type numbers struct {
	shards []*shard
	phases []corev1alpha1.LogicalClusterPhaseType
}

type announcement struct {
	placement
	kind       *typeName
	generation generation
}

// Stats are the sizes of the index.
type Stats struct {
	// These are numbers of announcements; a logical cluster that two shards announce counts twice.
	Shards, LogicalClusters, Workspaces int
}

// NewWorkspaceIndex returns an empty index.
func NewWorkspaceIndex() *Index {
	x := &Index{
		shards: map[string]*shard{}, types: map[string]*typeName{},
		announcements: map[*node][]announcement{}, contested: map[*node]map[string][]*link{},
		waiters: waiters{by: map[uint64]map[*waiter]struct{}{}},
	}
	x.numbers.Store(&numbers{shards: []*shard{{}}, phases: []corev1alpha1.LogicalClusterPhaseType{
		phaseNone: "", phaseReady: corev1alpha1.LogicalClusterPhaseReady, phaseUnavailable: corev1alpha1.LogicalClusterPhaseUnavailable,
	}})
	return x
}

// Lookup resolves the name of a logical cluster, or a path that starts with one or with user:<name>, the home of a
// user. Target is complete for Found and Unavailable.
func (x *Index) Lookup(path string) (Target, Outcome) {
	first, rest, more := cutFirst(path)
	n := x.node(first)
	if n == nil {
		return Target{}, Unknown
	}
	var last *link
	for more {
		var segment string
		segment, rest, more = strings.Cut(rest, separator)
		last = x.link(n, segment)
		switch {
		case last == nil:
			return Target{}, Unknown
		case last.target != nil:
		case more:
			return Target{}, Unknown // mounts have no children
		case last.more().mounted:
			return x.mounted(n, last)
		default:
			return Target{Owner: last.more().owner}, Pending
		}
		n = last.target
	}
	p := n.placement()
	switch {
	case p == 0 && last != nil:
		return Target{Owner: last.more().owner}, Pending
	case p == 0:
		return Target{}, Unknown
	}
	target := x.target(n, p)
	target.Type = n.kind.Load().String()
	if last != nil && last.rest != nil {
		target.Owner = last.rest.owner
	}
	if p.phase() == phaseUnavailable || (last != nil && last.phase == phaseUnavailable) {
		return target, Unavailable
	}
	return target, Found
}

// cutFirst returns the logical cluster at the start of a path, and the rest.
func cutFirst(path string) (first, rest string, more bool) {
	first, rest, more = strings.Cut(path, separator)
	if first == systemName {
		// The names of system clusters contain a separator; they have no children.
		first, more = path, false
	}
	if home, below, deeper, ok := tenancy.CutHome(path); ok {
		first, rest, more = home.String(), below, deeper
	}
	return first, rest, more
}

// Changed returns a channel that receives a value after the result of Lookup may have changed, until done is called.
// To wait for a result, call it before Lookup.
func (x *Index) Changed(path string) (changed <-chan struct{}, done func()) {
	w := &waiter{changed: make(chan struct{}, 1)}
	x.follow(w, path)
	return w.changed, func() { x.waiters.unregister(w) }
}

// WorkspaceChanged is Changed for the announcements of a Workspace.
func (x *Index) WorkspaceChanged(parent logicalcluster.Name, name string) (changed <-chan struct{}, done func()) {
	w := &waiter{changed: make(chan struct{}, 1)}
	x.waiters.add(w, step(parent, name))
	return w.changed, func() { x.waiters.unregister(w) }
}

// follow registers w for the steps of a lookup, each before it is read, so that no change is missed.
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

func (x *Index) target(n *node, p placement) Target {
	numbers := x.numbers.Load()
	on := numbers.shards[p.shard()]
	return Target{Cluster: n.name, Shard: on.name, URL: ptr.Deref(on.url.Load(), ""), Phase: numbers.phases[p.phase()], Created: p.created()}
}

// mounted returns the target of a mount in n.
func (x *Index) mounted(n *node, l *link) (Target, Outcome) {
	p := n.placement()
	if p == 0 {
		return Target{}, Pending
	}
	target := x.target(n, p)
	target.Created, target.Mount = 0, l.rest.mount
	if target.Mount == "" || l.phase != phaseReady || p.phase() == phaseUnavailable {
		return target, Unmounted
	}
	return target, Mounted
}

// Stats returns the sizes of the index.
func (x *Index) Stats() (stats Stats) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.shards {
		if s.url.Load() != nil {
			stats.Shards++
		}
		stats.LogicalClusters += s.tallies[LogicalClusters].total
		stats.Workspaces += s.tallies[Workspaces].total
	}
	return stats
}

func (x *Index) node(name string) *node { return x.clusters.find(nameHash(name), name) }

func (x *Index) link(parent *node, segment string) *link {
	key := linkKey{parent, segment}
	return x.links.find(key.hash(), key)
}

func (x *Index) shardNumber(number uint16) *shard { return x.numbers.Load().shards[number] }

// waiters are woken by changes of the steps of their lookups, and of steps with the same hash.
type waiters struct {
	mu sync.Mutex
	by map[uint64]map[*waiter]struct{}
}

type waiter struct {
	changed chan struct{}
	on      []uint64
}

// step is the hash of a step of a lookup: to the target of a segment or, without a segment, to the shard.
func step(cluster logicalcluster.Name, segment string) uint64 {
	hash := maphash.String(seed, cluster.String())
	if segment == "" {
		return hash
	}
	return hash*31 ^ maphash.String(seed, segment)
}

func (s *waiters) add(w *waiter, on uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
}

func (s *waiters) wake(cluster logicalcluster.Name, segment string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.by[step(cluster, segment)] {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}
