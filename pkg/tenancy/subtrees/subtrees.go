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

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Pace is how long it takes at least from one addition to the next: each looks at
// all logical clusters of the shard. So sums are as late as that.
const Pace = time.Second

// Index is the index of the LogicalClusters that limit their subtrees, which the
// informer of Config has.
const Index = "subtree-limits"

// IndexLimited is the function of Index.
func IndexLimited(lc *corev1alpha1.LogicalCluster) []string {
	if limitOf(lc) == nil {
		return nil
	}
	return []string{""}
}

// limitOf returns the limit that a LogicalCluster sets to its subtree, or nil.
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

// Config is what Sums are made of.
type Config struct {
	// Self is the name of the own shard.
	Self string
	// LogicalClusters are those of the own shard; the informer has Index.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Stored returns what each logical cluster of the own shard stores, and whether
	// that is known.
	Stored func() (stored iter.Seq2[logicalcluster.Name, Amount], known bool)
	// Others are the SubtreeUsages of all shards; nil where there is no cache server.
	Others *client.Informer[*SubtreeUsage]
	// Standing says whose SubtreeUsages count.
	ShardState func(shard string) replicas.ShardState
}

// Sums are what limited subtrees store. Its methods may be called from any
// goroutine, and return at once.
type Sums struct {
	c       Config
	changed chan struct{}
	current atomic.Pointer[snapshot]

	mu        sync.Mutex
	followers map[*func(logicalcluster.Name)]struct{}
}

// Subtree is a limited subtree.
type Subtree struct {
	// Top is the logical cluster at the top.
	Top logicalcluster.Name
	// Limit is what the subtree may store.
	Limit
	// Used is what all shards store of it.
	Used Amount

	own   Amount
	local bool // the own shard has the top
}

// snapshot is one addition. It does not change.
type snapshot struct {
	// complete is set once everything was known that was to be added.
	complete bool

	byPath map[string][]*Subtree
	byTop  map[logicalcluster.Name]*Subtree
}

// New returns sums of nothing: Run adds up.
func New(c Config) *Sums {
	s := &Sums{c: c, changed: make(chan struct{}, 1), followers: map[*func(logicalcluster.Name)]struct{}{}}
	s.current.Store(&snapshot{})
	return s
}

// Changed says that what is stored has changed.
func (s *Sums) Changed() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Of returns the limited subtrees that a path is in, the outermost first.
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

// prefixes are the paths that lead to a path, and the path itself.
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

// Share returns what the own shard has to tell others of the subtree below top,
// which is nil where that is nothing, and whether it is known.
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

// Most returns the limit of the subtree below top; 0 is any amount.
func (s *Sums) Most(top logicalcluster.Name) Amount {
	if subtree := s.current.Load().byTop[top]; subtree != nil {
		return subtree.Limit.Most
	}
	return Amount{}
}

// Follow has f told of the tops of subtrees whose Share is another one, until stop is
// called. f must return at once.
func (s *Sums) Follow(f func(top logicalcluster.Name)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers[&f] = struct{}{}
	for top := range s.current.Load().byTop {
		f(top)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, &f)
	}
}

// Run adds up whenever something changes, until ctx ends.
func (s *Sums) Run(ctx context.Context) error {
	defer s.c.LogicalClusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd:    func(lc *corev1alpha1.LogicalCluster, _ bool) { s.limited(lc) },
		OnUpdate: func(old, lc *corev1alpha1.LogicalCluster) { s.limited(old, lc) },
		OnDelete: func(last *corev1alpha1.LogicalCluster, _ bool) { s.limited(last) },
	}).Remove()
	if s.c.Others != nil {
		defer s.c.Others.AddEventHandler(s.c.Others.KeyHandler(func(client.Key) { s.Changed() })).Remove()
	}
	for {
		select {
		case <-s.changed:
		case <-ctx.Done():
			return nil
		}
		current := s.add()
		if !current.complete {
			s.Changed() // nobody says when the rest is known
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

// limited looks at what a LogicalCluster says of its subtree; new ones without a
// limit are nothing to add.
func (s *Sums) limited(versions ...*corev1alpha1.LogicalCluster) {
	if slices.ContainsFunc(versions, func(lc *corev1alpha1.LogicalCluster) bool { return limitOf(lc) != nil }) {
		s.Changed()
	}
}

// add adds up, and tells who follows.
func (s *Sums) add() *snapshot {
	complete := s.c.LogicalClusters.HasSynced() && (s.c.Others == nil || s.c.Others.HasSynced())
	next := s.limits()
	next.complete = complete
	if len(next.byTop) > 0 { // else what is stored, which is asked at each write, does not matter
		stored, known := s.c.Stored()
		next.complete = complete && known
		s.addOwn(next, stored)
		s.addOthers(next)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.current.Swap(next)
	for top := range next.byTop {
		if old := before.byTop[top]; !before.complete || old == nil || !old.sameShare(next.byTop[top]) {
			s.tell(top)
		}
	}
	for top := range before.byTop {
		if next.byTop[top] == nil {
			s.tell(top)
		}
	}
	return next
}

// tell tells who follows. The caller holds the lock.
func (s *Sums) tell(top logicalcluster.Name) {
	for f := range s.followers {
		(*f)(top)
	}
}

func (t *Subtree) sameShare(other *Subtree) bool {
	return t.own == other.own && t.local == other.local && t.Limit == other.Limit
}

// limits returns what is limited, with nothing in it.
func (s *Sums) limits() *snapshot {
	next := &snapshot{byPath: map[string][]*Subtree{}, byTop: map[logicalcluster.Name]*Subtree{}}
	put := func(subtree *Subtree) {
		if next.byTop[subtree.Top] == nil {
			next.byTop[subtree.Top] = subtree
			next.byPath[subtree.Path] = append(next.byPath[subtree.Path], subtree)
		}
	}
	own, _ := s.c.LogicalClusters.Lister().ByIndex(Index, "") // fails for an index that does not exist
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

// others are what other shards tell, in the order of their names: if several have a logical cluster, e.g. while it moves, all
// shards take the same limit.
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
			continue // it is being made, or was deleted
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

func (s *Sums) addOthers(to *snapshot) {
	for top, usage := range s.others() {
		if subtree := to.byTop[top]; subtree != nil {
			subtree.Used.add(usage.Used)
		}
	}
}

func (a *Amount) add(other Amount) {
	a.Objects += other.Objects
	a.Bytes += other.Bytes
}
