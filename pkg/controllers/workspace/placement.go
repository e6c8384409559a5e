package workspace

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// PlacementName is the name of the controller that creates and deletes logical clusters on this shard for Workspaces of other
// shards, which do not write to this one.
const PlacementName = "placement"

// PlacementConfig configures the placement controller.
type PlacementConfig struct {
	// ShardName is the name of this shard, and Peers are all shards.
	ShardName string
	Peers     *peers.Book
	// LogicalClusters are those of the shard; it must have OwnerIndex.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// NewPlacement returns the controller. Its keys are Workspaces with their shards.
func NewPlacement(config PlacementConfig) *reconcile.Controller[client.Key] {
	a := &requesters{self: config.ShardName, peers: config.Peers, clusters: config.LogicalClusters.Lister()}
	p := &placement{
		self: config.ShardName, now: time.Now,
		shard: func(name string) (requester, bool) {
			shard, ok := a.at(name)
			return shard, ok
		},
		owned: a.owned, here: localSite(config.Peers, config.ShardName, config.LogicalClusters),
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
	owned   func(key client.Key) []*corev1alpha1.LogicalCluster
	here    logicalClusters
	orphans *orphans
}

func (p *placement) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	shard, observed := p.shard(key.Shard)
	if !observed {
		return reconcile.Result{}, nil // requeued after the shard's requests have been listed
	}
	ws, found := shard.cached(key)
	kept := 0
	for _, lc := range p.owned(key) {
		if found && lc.Spec.Owner.UID == ws.UID || lc.DeletionTimestamp != nil {
			continue
		}
		stays, err := p.removeOrphan(ctx, key, shard, lc)
		if err != nil {
			return retry(fmt.Errorf("logical cluster %s, whose workspace %s does not exist: %w", logicalcluster.From(lc), key, err))
		}
		if stays {
			kept++
		}
	}
	p.orphans.note(key, kept)
	switch {
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
	if lc, found := p.here.cached(logicalcluster.Name(seen.Annotations[tenancy.ClusterAnnotation])); found {
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
	err = p.here.create(ctx, cluster, lc)
	if apierrors.IsAlreadyExists(err) {
		return taken, nil
	}
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Created a logical cluster for another shard", "cluster", cluster, "shard", key.Shard)
	}
	return retry(err)
}

func (p *placement) remove(ctx context.Context, ws *tenancyv1alpha1.Workspace) error {
	cluster := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation])
	if cluster == "" {
		return nil
	}
	lc, found := p.here.cached(cluster)
	if !found {
		// The informer may be behind.
		var err error
		if lc, err = p.here.get(ctx, cluster); err != nil {
			return reconcile.IgnoreNotFound(err)
		}
	}
	if lc.DeletionTimestamp != nil || !owns(ws, lc) {
		return nil
	}
	return p.here.remove(ctx, cluster, lc)
}

func (p *placement) removeOrphan(ctx context.Context, key client.Key, shard requester, lc *corev1alpha1.LogicalCluster) (kept bool, err error) {
	return removeOrphan(ctx, key, p.here, lc, p.now(), func(ctx context.Context) (bool, error) {
		ws, err := shard.live(ctx, key)
		return ws != nil && ws.UID == lc.Spec.Owner.UID, err
	})
}
