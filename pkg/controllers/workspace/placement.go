package workspace

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// PlacementName is the controller of logical clusters for Workspaces of other shards, which do not write to this one.
const PlacementName = "placement"

// NewPlacement returns the controller. Its keys are Workspaces with their shards. Of the configuration, it only uses the name of the
// shard, its LogicalClusters, Peers and Metrics.
func NewPlacement(config Config) *reconcile.Controller[client.Key] {
	a := &requesters{self: config.ShardName, peers: config.Peers, clusters: config.LogicalClusters.Lister()}
	p := &placement{
		self: config.ShardName, now: time.Now, shard: a.at, owned: a.owned, localClusters: localSite(config.Peers, config.ShardName, config.LogicalClusters),
		orphans: newOrphans(config.Metrics),
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: PlacementName, Reconcile: p.reconcile, Workers: workers,
		Sources: []reconcile.Source[client.Key]{
			a.watch,
			reconcile.FromInformer(config.LogicalClusters, func(lc *corev1alpha1.LogicalCluster) []client.Key {
				if key, ok := requesterOf(lc, config.ShardName); ok {
					return []client.Key{key}
				}
				return nil
			}),
		},
	})
}

// requester is another shard with Workspaces that may request logical clusters on this shard.
type requester interface {
	// cached returns the last observed Workspace, reduced to the fields used here.
	cached(key client.Key) (*tenancyv1alpha1.Workspace, bool)
	// live reads a Workspace from the shard. It returns nil if it does not exist.
	live(ctx context.Context, key client.Key) (*tenancyv1alpha1.Workspace, error)
}

type placement struct {
	self string
	now  func() time.Time
	// shard returns another shard if all of its requests have been observed.
	shard func(name string) (requester, bool)
	// owned returns the local LogicalClusters of a Workspace.
	owned         func(key client.Key) []*corev1alpha1.LogicalCluster
	localClusters logicalClusters
	orphans       *orphans
}

func (p *placement) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	shard, observed := p.shard(key.Shard)
	if !observed {
		return reconcile.Result{}, nil // requeued after the shard's requests have been listed
	}
	ws, found := shard.cached(key)
	others := slices.DeleteFunc(p.owned(key), func(lc *corev1alpha1.LogicalCluster) bool { return found && lc.Spec.Owner.UID == ws.UID })
	err := p.orphans.remove(ctx, key, p.localClusters, others, p.now(), func(ctx context.Context, owner types.UID) (bool, error) {
		live, err := shard.live(ctx, key)
		return live != nil && live.UID == owner, err
	})
	switch {
	case err != nil:
		return retry(err)
	case !found:
		return reconcile.Result{}, nil
	case ws.DeletionTimestamp != nil:
		return retry(p.remove(ctx, ws))
	case isScheduling(ws):
		return p.create(ctx, key, shard, ws)
	default:
		return reconcile.Result{}, nil
	}
}

// create creates the requested LogicalCluster. It reads the Workspace from its shard, because the watch may be behind. If the
// Workspace is deleted and released after that, the new LogicalCluster is removed as an orphan.
func (p *placement) create(ctx context.Context, key client.Key, shard requester, seen *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	// The Workspace's shard determines the owner of an existing LogicalCluster. It may be deleted later.
	taken := reconcile.Result{RequeueAfter: observeTimeout}
	if lc, found := p.localClusters.cached(logicalcluster.Name(seen.Annotations[tenancy.ClusterAnnotation])); found {
		if owns(seen, lc) {
			return reconcile.Result{}, nil
		}
		return taken, nil
	}
	ws, err := shard.live(ctx, key)
	if err != nil {
		return retry(fmt.Errorf("reading the workspace: %w", err))
	}
	if ws == nil || ws.DeletionTimestamp != nil || !isScheduling(ws) || ws.Labels[tenancy.TargetLabel] != p.self || ws.Annotations[tenancy.PlacementAnnotation] == "" {
		return reconcile.Result{}, nil // the watch will report it
	}
	lc, err := requestedLogicalCluster(ws)
	if err != nil {
		return reconcile.Result{}, err
	}
	cluster := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation])
	err = p.localClusters.create(ctx, cluster, lc)
	if apierrors.IsAlreadyExists(err) {
		return taken, nil
	}
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Created a logical cluster for another shard", "logicalCluster", cluster, "shard", key.Shard)
	}
	return retry(err)
}

func (p *placement) remove(ctx context.Context, ws *tenancyv1alpha1.Workspace) error {
	cluster := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation])
	if cluster == "" {
		return nil
	}
	lc, found := p.localClusters.cached(cluster)
	if !found {
		// The informer may be behind.
		var err error
		if lc, err = p.localClusters.get(ctx, cluster); err != nil {
			return reconcile.IgnoreNotFound(err)
		}
	}
	if lc.DeletionTimestamp != nil || !owns(ws, lc) {
		return nil
	}
	return p.localClusters.remove(ctx, cluster, lc)
}

// requesters watches the other shards for Workspaces with logical clusters on this shard.
type requesters struct {
	self     string
	peers    *peers.Book
	clusters client.Lister[*corev1alpha1.LogicalCluster]
	remote   table[requestingShard]
}

type requestingShard struct {
	*peers.Peer
	informer *client.Informer[*tenancyv1alpha1.Workspace]
}

func (s *requestingShard) cached(key client.Key) (*tenancyv1alpha1.Workspace, bool) {
	key.Shard = ""
	ws, err := s.informer.Lister().Get(key)
	return ws, err == nil
}

func (s *requestingShard) live(ctx context.Context, key client.Key) (ws *tenancyv1alpha1.Workspace, err error) {
	err = s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		ws, err = live(ctx, s.Clients, key)
		return err
	})
	return ws, err
}

// at returns a shard after its requests have been listed completely.
func (a *requesters) at(shard string) (requester, bool) {
	s := a.remote.get(shard)
	return s, s != nil && s.informer.HasSynced()
}

// owned returns the LogicalClusters of this shard that belong to a Workspace of another shard.
func (a *requesters) owned(key client.Key) []*corev1alpha1.LogicalCluster {
	shard := key.Shard
	key.Shard = ""
	all, _ := a.clusters.ByIndex(OwnerIndex, key.String()) // fails only if the index does not exist
	return slices.DeleteFunc(all, func(lc *corev1alpha1.LogicalCluster) bool { return lc.Labels[tenancy.OwnerShardLabel] != shard })
}

// watch is a reconcile.Source of the requests of all registered shards.
func (a *requesters) watch(ctx context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return a.peers.Follow(ctx, func(ctx context.Context, shard *peers.Peer) { a.follow(ctx, shard, queue) }), nil
}

func (a *requesters) follow(ctx context.Context, shard *peers.Peer, queue reconcile.Queue[client.Key]) {
	informer := kinds.Workspaces.Informer(shard.Clients.Wildcard(), client.InformerOptions[*tenancyv1alpha1.Workspace]{
		Name: "workspaces@" + shard.Name, LabelSelector: tenancy.TargetLabel + "=" + a.self, Transform: slimWorkspace,
	})
	informer.AddKeyHandler(func(key client.Key) {
		key.Shard = shard.Name
		queue.Add(key)
	}, nil)
	a.remote.Store(shard.Name, &requestingShard{Peer: shard, informer: informer})
	defer a.remote.Delete(shard.Name)
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() {
		if informer.WaitForSync(ctx) != nil {
			return // ctx is done
		}
		// There may be no event for a lost Workspace. Requests from before the informer had synced were not processed.
		for _, lc := range a.clusters.List(nil) {
			if key, ok := requesterOf(lc, a.self); ok && key.Shard == shard.Name {
				queue.Add(key)
			}
		}
		for _, ws := range informer.Lister().List(nil) {
			queue.Add(client.Key{Shard: shard.Name, Cluster: logicalcluster.From(ws), Name: ws.Name})
		}
	})
	if err := informer.Run(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Stopped watching the workspaces of a shard", "shard", shard.Name)
		<-ctx.Done()
	}
}

// slimWorkspace keeps the fields that placement needs, because there may be many Workspaces.
func slimWorkspace(ws *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error) {
	return &tenancyv1alpha1.Workspace{
		ObjectMeta: tenancy.Slim(&ws.ObjectMeta, tenancy.ClusterAnnotation), Status: tenancyv1alpha1.WorkspaceStatus{Phase: ws.Status.Phase},
	}, nil
}

// requesterOf returns the key of the Workspace on another shard that owns a LogicalCluster.
func requesterOf(lc *corev1alpha1.LogicalCluster, self string) (client.Key, bool) {
	key, ok := ownerOf(lc)
	key.Shard = lc.Labels[tenancy.OwnerShardLabel]
	return key, ok && key.Shard != "" && key.Shard != self
}
