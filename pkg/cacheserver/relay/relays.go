package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/replication/push"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// MaxHops is the maximum number of cache servers that a replica may pass.
	MaxHops = 3
	// removalTimeout limits the deletion of the replicas of a CachedResource, before it is retried.
	removalTimeout = time.Minute
)

// Relays are the relays of one cache server.
type Relays struct {
	self    Self
	sources []*source
	// checkpoints are those on this cache server.
	checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
	observer    *health.Observer
	cached      cachedResources
	changes     chan struct{}

	mu sync.Mutex
	// running are the relayed shards. logged are the shards for which exceeding MaxHops has been logged.
	running map[string]*relayedShard
	logged  map[string]struct{}
}

// relayedShard is a shard whose replicas are relayed.
type relayedShard struct {
	source *source
	via    []string
	// table contains cached in addition to the common resources.
	table  *replication.Table
	cached sets.Set[schema.GroupVersionResource]

	running sync.WaitGroup
	ctx     context.Context //nolint:containedctx // as long as it is relayed
	cancel  context.CancelFunc
}

// NewRelays returns the relays of a cache server, which do nothing until they run.
func NewRelays(config Config, self Self, options ...client.FactoryOption) (*Relays, error) {
	self.Timing = self.Timing.withDefaults()
	everything := self.Replicas.Shard(request.Wildcard).Wildcard()
	r := &Relays{
		self: self, changes: make(chan struct{}, 1), running: map[string]*relayedShard{}, logged: map[string]struct{}{},
		checkpoints: replicationcheckpoints.Checkpoints.Informer(everything, client.InformerOptions[*replicationcheckpoints.ReplicationCheckpoint]{}),
	}
	r.cached = cachedResources{
		kinds.CachedResources.Informer(everything, client.InformerOptions[*cachev1alpha1.CachedResource]{}),
		kinds.ClusterCachedResources.Informer(everything, client.InformerOptions[*cachev1alpha1.CachedResource]{}),
	}
	r.observer = health.NewObserver("", r.checkpoints, r.Relays, self.Metrics)
	m := newMetrics(self.Metrics)
	for _, relay := range config.Relays {
		s, err := newSource(relay.From, self, m, options...)
		if err != nil {
			return nil, fmt.Errorf("relaying from %q: %w", relay.From.Name, err)
		}
		r.sources = append(r.sources, s)
	}
	return r, nil
}

// Relays reports whether the replicas of a shard are relayed, so that they may be written. A nil r relays none.
func (r *Relays) Relays(shard string) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[shard] != nil
}

// changed triggers an assignment.
func (r *Relays) changed() {
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// Run relays until ctx is done.
func (r *Relays) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := []*client.Informer[*replicationcheckpoints.ReplicationCheckpoint]{r.checkpoints}
	for _, s := range r.sources {
		followed = append(followed, s.checkpoints)
	}
	for _, informer := range followed {
		defer informer.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
			OnAdd: func(*replicationcheckpoints.ReplicationCheckpoint, bool) { r.changed() },
			OnUpdate: func(before, now *replicationcheckpoints.ReplicationCheckpoint) {
				if !slices.Equal(before.Via, now.Via) {
					r.changed()
				}
			},
			OnDelete: func(*replicationcheckpoints.ReplicationCheckpoint, bool) { r.changed() },
		}).Remove()
	}
	wg.Go(func() { _ = r.checkpoints.Run(ctx) }) // it only fails if it is already running
	wg.Go(func() { _ = r.observer.Run(ctx) })
	for _, informer := range r.cached {
		defer informer.AddKeyHandler(func(client.Key) { r.changed() }, nil).Remove()
		wg.Go(func() { _ = informer.Run(ctx) })
	}
	for _, s := range r.sources {
		wg.Go(func() { _ = s.run(ctx, r.changed) })
	}
	tick := time.NewTicker(r.self.Timing.Look)
	defer tick.Stop()
	defer func() {
		for shard, now := range r.all() {
			r.end(shard, now)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-r.changes:
		}
		if r.checkpoints.HasSynced() {
			r.assign(ctx)
		}
	}
}

// route is a path by which the replicas of a shard may be relayed.
type route struct {
	source *source
	via    []string
}

// assign starts and stops relays, according to the checkpoints of the sources.
func (r *Relays) assign(ctx context.Context) {
	routes := r.routes(ctx)
	counts := map[*source]int{}
	running := r.all()
	for shard, now := range running {
		if next := r.choose(routes[shard], now); next == nil || next.source != now.source || !slices.Equal(next.via, now.via) {
			r.end(shard, now)
			delete(running, shard)
		}
	}
	cached := r.cached.of()
	for shard, all := range routes {
		now := running[shard]
		if next := r.choose(all, now); now == nil && next != nil {
			if now = r.begin(ctx, shard, *next); now == nil {
				continue
			}
		}
		if now == nil {
			continue
		}
		if counts[now.source]++; cached != nil {
			now.follow(shard, cached[shard]) //nolint:contextcheck // as long as the shard is relayed
		}
	}
	for _, s := range r.sources {
		s.metrics.relayed.WithLabelValues(s.Name).Set(float64(counts[s]))
	}
}

// routes returns the possible paths of each shard in the order of preference. A shard that pushes to this cache server
// has none. No path contains a cache server twice or has more than MaxHops.
func (r *Relays) routes(ctx context.Context) map[string][]route {
	direct := map[string]bool{}
	for _, cp := range r.checkpoints.Lister().List(nil) {
		direct[r.checkpoints.KeyOf(cp).Shard] = cp.Name == replicationcheckpoints.Name && len(cp.Via) == 0
	}
	all := map[string][]route{}
	for _, s := range r.sources {
		if ok, _ := s.usable(); !ok {
			continue
		}
		for _, cp := range s.checkpoints.Lister().List(nil) {
			shard := s.checkpoints.KeyOf(cp).Shard
			via := append(slices.Clone(cp.Via), s.Name)
			switch {
			case cp.Name != replicationcheckpoints.Name || direct[shard] || slices.Contains(via, r.self.Name) || slices.Contains(cp.Via, s.Name):
			case len(via) > MaxHops:
				r.exceedsMaxHops(ctx, shard, via)
			default:
				all[shard] = append(all[shard], route{s, via})
			}
		}
	}
	for _, of := range all {
		slices.SortStableFunc(of, func(a, b route) int { return len(a.via) - len(b.via) })
	}
	return all
}

// exceedsMaxHops logs once that a shard exceeds MaxHops.
func (r *Relays) exceedsMaxHops(ctx context.Context, shard string, via []string) {
	if _, logged := r.logged[shard]; logged {
		return
	}
	r.logged[shard] = struct{}{}
	klog.FromContext(ctx).Info("Not relaying a shard whose replicas pass too many cache servers: relay from one that is closer to the shard",
		"shard", shard, "via", strings.Join(via, ","), "most", MaxHops)
}

// choose returns the path for a shard, or nil. The current path is kept unless it has been unreachable for some time.
func (r *Relays) choose(routes []route, now *relayedShard) (best *route) {
	lowest := 0
	for i, w := range routes {
		rank := 0
		if now == nil || w.source != now.source {
			rank++
		}
		if _, unreachable := w.source.usable(); unreachable >= r.self.Timing.Unreachable {
			rank += 2
		}
		if best == nil || rank < lowest {
			best, lowest = &routes[i], rank
		}
	}
	return best
}

// begin starts to relay the replicas of a shard. It returns nil on failure.
func (r *Relays) begin(ctx context.Context, shard string, w route) *relayedShard {
	logger := klog.FromContext(ctx).WithValues("shard", shard, "via", strings.Join(w.via, ","))
	table, err := table(shard, r.self.Written)
	var controller *push.Controller
	if err == nil {
		controller, err = push.NewPushController(push.Config{
			Metrics: r.self.Metrics,
			Shard:   shard, Table: table, CacheName: w.source.Name + "/" + shard,
			Local: w.source.factory.Shard(shard), Cache: r.self.Replicas,
			Relay:              &push.Relay{Via: w.via, Checkpoints: w.source.checkpoints},
			CheckpointInterval: r.self.Timing.Checkpoint, DigestInterval: r.self.Timing.Digest, AlertInterval: r.self.Timing.Alert,
		})
	}
	if err != nil {
		logger.Error(err, "Failed to relay the replicas of a shard")
		return nil
	}
	now := &relayedShard{source: w.source, via: w.via, table: table, cached: sets.New[schema.GroupVersionResource]()}
	now.ctx, now.cancel = context.WithCancel(ctx)
	r.mu.Lock()
	r.running[shard] = now
	r.mu.Unlock()
	logger.Info("Relaying the replicas of a shard")
	now.running.Go(func() {
		if err := controller.Run(now.ctx); err != nil {
			logger.Error(err, "The relay of a shard has failed, retrying")
			r.delete(shard, now)
		}
	})
	return now
}

func (r *Relays) end(shard string, now *relayedShard) {
	now.cancel()
	now.running.Wait()
	r.delete(shard, now)
}

func (r *Relays) delete(shard string, now *relayedShard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[shard] == now {
		delete(r.running, shard)
	}
}

func (r *Relays) all() map[string]*relayedShard {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.running)
}

// table returns the resources that are relayed for a shard. Resources that shards write directly are relayed
// completely. Of other resources, only objects for the whole installation are relayed. However, all Shards of root
// are relayed, because the deletion of a Shard removes the shard.
func table(shard string, written []schema.GroupVersionResource) (*replication.Table, error) {
	defaults := replication.Defaults()
	all := make([]replication.Resource, 0, len(written)+len(defaults))
	for _, resource := range written {
		all = append(all, replication.Resource{GroupVersionResource: resource, WithoutCheckpoint: true})
	}
	for _, resource := range defaults {
		relayed := replication.Resource{GroupVersionResource: resource.GroupVersionResource, Filter: replication.OfInstallation}
		if shard == corev1alpha1.RootShard && resource.GroupResource() == corev1alpha1.Resource("shards") {
			relayed.Filter = nil
		}
		all = append(all, relayed)
	}
	return replication.NewTable(all...)
}

// follow adds the resources that CachedResources select to the table of a shard, and removes others.
func (now *relayedShard) follow(shard string, wanted sets.Set[schema.GroupVersionResource]) {
	ctx := now.ctx
	logger := klog.FromContext(ctx).WithValues("shard", shard)
	for resource := range wanted.Difference(now.cached) {
		err := now.table.Add(replication.Resource{GroupVersionResource: resource, Filter: replication.OfInstallation})
		if err != nil { // it is being removed
			logger.V(2).Info("Failed to relay the objects of a CachedResource, retrying", "err", err)
			continue
		}
		now.cached.Insert(resource)
	}
	for resource := range now.cached.Difference(wanted) {
		now.cached.Delete(resource)
		now.running.Go(func() {
			for ctx.Err() == nil {
				removing, cancel := context.WithTimeout(ctx, removalTimeout)
				err := now.table.Remove(removing, resource.GroupResource())
				cancel()
				if err == nil {
					return
				}
				logger.V(2).Info("Failed to delete the replicas of a CachedResource, retrying", "err", err)
			}
		})
	}
}

// cachedResources are the CachedResources on this cache server. They are relayed themselves, so that nothing depends on
// the current content of the other one. A regional CachedResource is not relayed, and neither are its objects.
type cachedResources []*client.Informer[*cachev1alpha1.CachedResource]

// of returns the resources that the CachedResources of each shard select, or nil until they are loaded.
func (c cachedResources) of() map[string]sets.Set[schema.GroupVersionResource] {
	all := map[string]sets.Set[schema.GroupVersionResource]{}
	for _, informer := range c {
		if !informer.HasSynced() {
			return nil
		}
		for _, cached := range informer.Lister().List(nil) {
			if cached.Annotations[apis.CachedKindAnnotation] == "" || cached.Annotations[apis.CachedScopeAnnotation] != string(apiextensionsv1.ClusterScoped) || !request.ValidIdentity(cached.Status.IdentityHash) {
				continue
			}
			shard := informer.KeyOf(cached).Shard
			if all[shard] == nil {
				all[shard] = sets.New[schema.GroupVersionResource]()
			}
			all[shard].Insert(apis.ReplicatedOf(cached))
		}
	}
	return all
}
