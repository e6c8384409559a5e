package workspaceindex

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"

	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// separator joins the names of a path.
	separator = ":"
	// systemName is what the names of system clusters start with.
	systemName = "system"
)

// Outcome says how a lookup ended.
type Outcome int

const (
	// Unknown means that nothing of that name or path is announced.
	Unknown Outcome = iota
	// Pending means that a Workspace of that path is announced, but no
	// logical cluster for it yet.
	Pending
	// Unavailable means that the logical cluster is known and that its phase,
	// or that of its Workspace, says that it cannot be served.
	Unavailable
	// Found means that the logical cluster is known.
	Found
	// Mounted means that the Workspace leads to a URL, and not to a logical cluster of
	// its own.
	Mounted
	// Unmounted means that the Workspace is such a mount, and that it leads nowhere now.
	Unmounted
)

// String returns a word for logs.
func (o Outcome) String() string {
	return [...]string{"Unknown", "Pending", "Unavailable", "Found", "Mounted", "Unmounted"}[o]
}

// Target is where a logical cluster is.
type Target struct {
	// Cluster is the resolved name.
	Cluster logicalcluster.Name
	// Shard is the name of the shard that holds it.
	Shard string
	// URL is the base URL of that shard; empty if the shard has not been
	// announced.
	URL string
	// Phase is that of the LogicalCluster.
	Phase corev1alpha1.LogicalClusterPhaseType
	// Type is path and name of the type of the workspace.
	Type string
	// Created is the creation time of the LogicalCluster in seconds.
	Created int64
	// Owner is that of the Workspace that a path leads to, for Pending too.
	Owner Owner
	// Mount is the URL of a mount. All else is about the logical cluster then that has its
	// Workspace, which is not where the path leads.
	Mount string
}

// Owner is who owns a workspace that is not ready yet, as OwnerNamed makes it of a name;
// 0 is nobody. It means something in this process only.
type Owner uint64

var ownerSeed = maphash.MakeSeed()

// OwnerNamed returns who has a name.
func OwnerNamed(name string) Owner {
	if name == "" {
		return 0
	}
	return Owner(maphash.String(ownerSeed, name))
}

// LogicalCluster is what a shard announces about a logical cluster it holds.
type LogicalCluster struct {
	// Name is the logical cluster's name.
	Name logicalcluster.Name
	// Shard is the shard that the object itself says it is on, if it does.
	Shard string
	// Phase is status.phase.
	Phase corev1alpha1.LogicalClusterPhaseType
	// Migrating is set while the content moves to another shard.
	Migrating bool
	// Deleting is set once the object is being deleted.
	Deleting bool
	// Type is path and name of its type.
	Type string
	// Created is the creation time in seconds.
	Created int64
}

// Workspace is what a shard announces about a workspace it holds.
type Workspace struct {
	// Parent is the logical cluster in which the Workspace object is.
	Parent logicalcluster.Name
	// Name is the workspace's name: the segment of paths.
	Name string
	// Cluster is the logical cluster it leads to; empty before scheduling.
	Cluster logicalcluster.Name
	// Phase is status.phase.
	Phase corev1alpha1.LogicalClusterPhaseType
	// Owner is who may use it before others know of it.
	Owner Owner
	// Mount is the URL that a mount leads to, Mounted whether it is one.
	Mount   string
	Mounted bool
}

// Index is the index. Make one with New; all methods may be called from any
// goroutine.
type Index struct {
	// clusters holds a *node by name (string).
	clusters sync.Map

	// mu orders writers.
	mu     sync.Mutex
	shards map[string]*shard
	stats  Stats

	// changed is the channel to close at the next change, if anybody waits.
	changed atomic.Pointer[chan struct{}]
}

// Stats are the sizes of the index.
type Stats struct {
	// Shards, LogicalClusters and Workspaces count announcements; a logical
	// cluster that two shards announce counts twice.
	Shards, LogicalClusters, Workspaces int
}

// shard is a shard that announced anything, itself included.
type shard struct {
	name  string
	known bool
	url   atomic.Pointer[string]
}

// node is a logical cluster that is announced, or that announced workspaces
// lead from or to.
type node struct {
	name logicalcluster.Name
	// place is the list of placements, the valid one first.
	place atomic.Pointer[placement]
	// children holds the list of links, the valid one first, as *link by
	// workspace name (string).
	children sync.Map
	// uses counts placements, links from and links to the node. Writers only.
	uses int
}

// placement says that a shard holds a logical cluster. It is immutable.
type placement struct {
	LogicalCluster
	shard *shard
	next  *placement
}

// link leads from a parent to the logical cluster of a workspace, as one shard
// announced it. It is immutable.
type link struct {
	shard  string
	target *node
	phase  corev1alpha1.LogicalClusterPhaseType
	owner  Owner
	// mount is set for mounts, to the URL.
	mount *string
	next  *link
}

// New returns an empty index.
func New() *Index { return &Index{shards: map[string]*shard{}} }

// Lookup resolves the name of a logical cluster, or a path that starts with
// one or with user:<name>, the home of a user. Target is complete for Found and Unavailable.
func (x *Index) Lookup(path string) (Target, Outcome) {
	first, rest, more := strings.Cut(path, separator)
	if first == systemName {
		// The names of system clusters hold a separator; none has children.
		first, more = path, false
	}
	if home, below, deeper, ok := tenancy.CutHome(path); ok {
		first, rest, more = home.String(), below, deeper
	}
	n := x.node(first)
	if n == nil {
		return Target{}, Unknown
	}
	var last *link
	for more {
		var segment string
		segment, rest, more = strings.Cut(rest, separator)
		found, ok := n.children.Load(segment)
		if !ok {
			return Target{}, Unknown
		}
		last = found.(*link)
		switch {
		case last.target != nil:
		case more:
			return Target{}, Unknown // nothing is below a mount
		case last.mount != nil:
			return n.mounted(last)
		default:
			return Target{Owner: last.owner}, Pending
		}
		n = last.target
	}
	p := n.place.Load()
	switch {
	case p == nil && last != nil:
		return Target{Owner: last.owner}, Pending
	case p == nil:
		return Target{}, Unknown
	}
	target := Target{Cluster: n.name, Shard: p.shard.name, URL: p.shard.baseURL(), Phase: p.Phase, Type: p.Type, Created: p.Created}
	if last != nil {
		target.Owner = last.owner
	}
	if p.Phase == corev1alpha1.LogicalClusterPhaseUnavailable ||
		(last != nil && last.phase == corev1alpha1.LogicalClusterPhaseUnavailable) {
		return target, Unavailable
	}
	return target, Found
}

// mounted returns where a mount leads that has its Workspace in n.
func (n *node) mounted(l *link) (Target, Outcome) {
	p := n.place.Load()
	if p == nil {
		return Target{}, Pending
	}
	target := Target{Cluster: n.name, Shard: p.shard.name, URL: p.shard.baseURL(), Phase: p.Phase, Mount: *l.mount}
	if target.Mount == "" || l.phase != corev1alpha1.LogicalClusterPhaseReady || p.Phase == corev1alpha1.LogicalClusterPhaseUnavailable {
		return target, Unmounted
	}
	return target, Mounted
}

// Changed returns a channel that is closed at the next change of the index. To
// wait for a lookup's result to change, get the channel before the lookup.
func (x *Index) Changed() <-chan struct{} {
	for {
		if c := x.changed.Load(); c != nil {
			return *c
		}
		c := make(chan struct{})
		if x.changed.CompareAndSwap(nil, &c) {
			return c
		}
	}
}

// Stats returns the sizes of the index.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stats
}

// begin starts a change; the function it returns ends it.
func (x *Index) begin() (end func()) {
	x.mu.Lock()
	return func() {
		x.mu.Unlock()
		if c := x.changed.Swap(nil); c != nil {
			close(*c)
		}
	}
}

func (x *Index) node(name string) *node {
	found, ok := x.clusters.Load(name)
	if !ok {
		return nil
	}
	return found.(*node)
}

// use returns the node of a name, made where there is none, and counts a use.
func (x *Index) use(name logicalcluster.Name) *node {
	n := x.node(name.String())
	if n == nil {
		n = &node{name: name}
		x.clusters.Store(name.String(), n)
	}
	n.uses++
	return n
}

// release drops a use of a node, and with the last one the node.
func (x *Index) release(n *node) {
	n.uses--
	if n.uses == 0 {
		x.clusters.Delete(n.name.String())
	}
}

func (s *shard) baseURL() string {
	if url := s.url.Load(); url != nil {
		return *url
	}
	return ""
}
