package subtrees

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

// Kind is the kind of SubtreeUsages.
const Kind = "SubtreeUsage"

// Usages is the resource of SubtreeUsages, on the cache server.
var Usages = cachekinds.Define[SubtreeUsage](Kind, "subtreeusages")

// Amount is an amount of storage, or a limit.
type Amount struct {
	// Objects is the number of objects of all kinds but Events.
	Objects int64 `json:"objects,omitempty"`
	// Bytes is the size of keys and values in etcd.
	Bytes int64 `json:"bytes,omitempty"`
}

// SubtreeUsage is the storage that a shard uses for a workspace with a subtree limit and all workspaces below it. Each shard
// with data of the subtree has one, in the logical cluster of the workspace at the top.
type SubtreeUsage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Limit is set by the shard of the logical cluster at the top.
	Limit *Limit `json:"limit,omitempty"`
	Used  Amount `json:"used"`
}

// Limit is the limit of a subtree.
type Limit struct {
	// Path is the path of the logical cluster at the top.
	Path string `json:"path"`
	// Most is the limit for all shards together. 0 means no limit.
	Most Amount `json:"most"`
}

// DeepCopyObject implements runtime.Object.
func (u *SubtreeUsage) DeepCopyObject() runtime.Object {
	c := *u
	u.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	if u.Limit != nil {
		limit := *u.Limit
		c.Limit = &limit
	}
	return &c
}

// Pace is the minimum interval between two computations, because each visits all logical clusters of the shard.
const Pace = time.Second

// Index is the name of the index IndexLimited, which Config.LogicalClusters must have.
const Index = "subtree-limits"

// IndexLimited indexes the LogicalClusters that limit their subtrees.
func IndexLimited(lc *corev1alpha1.LogicalCluster) []string {
	if limitOf(lc) == nil {
		return nil
	}
	return []string{""}
}

// limitOf returns the limit for the subtree of a LogicalCluster, or nil.
func limitOf(lc *corev1alpha1.LogicalCluster) *Limit {
	var most Amount
	if text, ok := lc.Annotations[tenancy.MaxSubtreeObjectsAnnotation]; ok {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			most.Objects = max(n, 0)
		}
	}
	if text, ok := lc.Annotations[tenancy.MaxSubtreeBytesAnnotation]; ok {
		if q, err := resource.ParseQuantity(text); err == nil {
			most.Bytes = max(q.Value(), 0)
		}
	}
	if most == (Amount{}) {
		return nil
	}
	return &Limit{Path: tenancy.PathOf(lc).String(), Most: most}
}

// Config configures Sums.
type Config struct {
	// Self is the name of this shard.
	Self string
	// LogicalClusters contains the LogicalClusters of this shard.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Stored returns the storage used by each logical cluster of this shard, and false if it is not known yet.
	Stored func() (stored iter.Seq2[logicalcluster.Name, Amount], known bool)
	// Others contains the SubtreeUsages of all shards. It is nil without a cache server.
	Others *client.Informer[*SubtreeUsage]
	// ShardState is used to ignore removed shards.
	ShardState func(shard string) replicas.ShardState
}

// Sums contains the usage of limited subtrees. Its methods may be called concurrently, and do not block.
type Sums struct {
	c       Config
	changed chan struct{}
	current atomic.Pointer[snapshot]

	mu       sync.Mutex
	follower *func(top logicalcluster.Name)
}

// Subtree is a limited subtree.
type Subtree struct {
	// Top is the logical cluster at the top.
	Top logicalcluster.Name
	Limit
	// Used is the usage on all shards.
	Used Amount

	own   Amount
	local bool // the logical cluster at the top is on this shard
}

// snapshot is the immutable result of a computation.
type snapshot struct {
	// complete is set if all inputs were known.
	complete bool

	byPath map[string][]*Subtree
	byTop  map[logicalcluster.Name]*Subtree
}

// NewSubtreeSums returns empty sums, which Run computes.
func NewSubtreeSums(c Config) *Sums {
	s := &Sums{c: c, changed: make(chan struct{}, 1)}
	s.current.Store(&snapshot{})
	return s
}

// Changed triggers a computation.
func (s *Sums) Changed() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Of returns the limited subtrees that contain a path, from the outermost to the innermost.
func (s *Sums) Of(path string) []*Subtree {
	current := s.current.Load()
	if len(current.byPath) == 0 {
		return nil
	}
	var found []*Subtree
	for prefix := range prefixes(path) {
		found = append(found, current.byPath[prefix]...)
	}
	return found
}

// prefixes returns the paths of all ancestors, and the path itself.
func prefixes(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range len(path) {
			if path[i] == ':' && !yield(path[:i]) {
				return
			}
		}
		yield(path)
	}
}

// Share returns this shard's SubtreeUsage for the subtree below top, or nil if it must not exist, and false if it is
// not known yet.
func (s *Sums) Share(top logicalcluster.Name) (share *SubtreeUsage, known bool) {
	current := s.current.Load()
	subtree := current.byTop[top]
	if !current.complete || subtree == nil || !subtree.local && subtree.own == (Amount{}) {
		return nil, current.complete
	}
	share = &SubtreeUsage{Used: subtree.own}
	share.Name = corev1alpha1.LogicalClusterName
	if subtree.local {
		limit := subtree.Limit
		share.Limit = &limit
	}
	return share, true
}

// Most returns the limit for the subtree below top. 0 means no limit.
func (s *Sums) Most(top logicalcluster.Name) Amount {
	if subtree := s.current.Load().byTop[top]; subtree != nil {
		return subtree.Limit.Most
	}
	return Amount{}
}

// Follow calls f for each subtree whose Share changes until stop is called or another follower takes its place. f must
// not block.
func (s *Sums) Follow(f func(top logicalcluster.Name)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.follower = &f
	for top := range s.current.Load().byTop {
		f(top)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.follower == &f { // not the one of a later term
			s.follower = nil
		}
	}
}

// Run computes the sums whenever something changes, until ctx ends.
func (s *Sums) Run(ctx context.Context) error {
	defer s.c.LogicalClusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(lc *corev1alpha1.LogicalCluster, _ bool) { s.limited(lc) },
		OnUpdate: func(old, lc *corev1alpha1.LogicalCluster) { s.limited(old, lc) },
		OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) { s.limited(last) },
	}).Remove()
	if s.c.Others != nil {
		defer s.c.Others.AddKeyHandler(func(client.Key) { s.Changed() }, nil).Remove()
	}
	for {
		select {
		case <-s.changed:
		case <-ctx.Done():
			return nil
		}
		current := s.add()
		if !current.complete {
			s.Changed() // retry, because there is no notification when the rest is known
		} else if len(current.byTop) == 0 {
			continue
		}
		select {
		case <-time.After(Pace):
		case <-ctx.Done():
			return nil
		}
	}
}

// limited triggers a computation if a LogicalCluster has, or had, a limit.
func (s *Sums) limited(versions ...*corev1alpha1.LogicalCluster) {
	if slices.ContainsFunc(versions, func(lc *corev1alpha1.LogicalCluster) bool { return limitOf(lc) != nil }) {
		s.Changed()
	}
}

// add computes the sums and notifies the follower.
func (s *Sums) add() *snapshot {
	complete := s.c.LogicalClusters.HasSynced() && (s.c.Others == nil || s.c.Others.HasSynced())
	next := s.limits()
	next.complete = complete
	if len(next.byTop) > 0 { // Stored is expensive
		stored, known := s.c.Stored()
		next.complete = complete && known
		s.addOwn(next, stored)
		for top, usage := range s.others() {
			if subtree := next.byTop[top]; subtree != nil {
				subtree.Used.add(usage.Used)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	notify := func(logicalcluster.Name) {}
	if s.follower != nil {
		notify = *s.follower
	}
	before := s.current.Swap(next)
	for top, now := range next.byTop {
		old := before.byTop[top]
		if !before.complete || old == nil || old.own != now.own || old.local != now.local || old.Limit != now.Limit {
			notify(top)
		}
	}
	for top := range before.byTop {
		if next.byTop[top] == nil {
			notify(top)
		}
	}
	return next
}

// limits returns the limited subtrees without their usage.
func (s *Sums) limits() *snapshot {
	next := &snapshot{byPath: map[string][]*Subtree{}, byTop: map[logicalcluster.Name]*Subtree{}}
	put := func(subtree *Subtree) {
		if next.byTop[subtree.Top] == nil {
			next.byTop[subtree.Top] = subtree
			next.byPath[subtree.Path] = append(next.byPath[subtree.Path], subtree)
		}
	}
	own, _ := s.c.LogicalClusters.Lister().ByIndex(Index, "") // only fails if there is no such index
	for _, lc := range own {
		if limit := limitOf(lc); limit != nil && !request.IsSystem(logicalcluster.Name(limit.Path)) {
			put(&Subtree{Top: logicalcluster.From(lc), Limit: *limit, local: true})
		}
	}
	for top, usage := range s.others() {
		if usage.Limit != nil {
			put(&Subtree{Top: top, Limit: *usage.Limit})
		}
	}
	return next
}

// others returns the usages of other shards, sorted by shard, so that all use the same limit if several have a cluster.
func (s *Sums) others() iter.Seq2[logicalcluster.Name, *SubtreeUsage] {
	return func(yield func(logicalcluster.Name, *SubtreeUsage) bool) {
		if s.c.Others == nil {
			return
		}
		usages := s.c.Others.Lister().List(nil)
		slices.SortFunc(usages, func(a, b *SubtreeUsage) int {
			return cmp.Compare(s.c.Others.KeyOf(a).Shard, s.c.Others.KeyOf(b).Shard)
		})
		for _, usage := range usages {
			key := s.c.Others.KeyOf(usage)
			if key.Shard != s.c.Self && s.c.ShardState(key.Shard) != replicas.Removed && !yield(key.Cluster, usage) {
				return
			}
		}
	}
}

func (s *Sums) addOwn(to *snapshot, stored iter.Seq2[logicalcluster.Name, Amount]) {
	clusters := s.c.LogicalClusters.Lister()
	for cluster, amount := range stored {
		lc, err := clusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
		if err != nil {
			continue // it is being created, or was deleted
		}
		for prefix := range prefixes(tenancy.PathOf(lc).String()) {
			for _, subtree := range to.byPath[prefix] {
				subtree.own.add(amount)
			}
		}
	}
	for subtree := range maps.Values(to.byTop) {
		subtree.Used.add(subtree.own)
	}
}

func (a *Amount) add(other Amount) {
	a.Objects += other.Objects
	a.Bytes += other.Bytes
}
