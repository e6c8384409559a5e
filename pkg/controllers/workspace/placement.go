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

// PlacementName is the name of the controller that gives Workspaces of other shards their
// logical clusters on this one, and takes them away again. Those shards write nothing here.
const PlacementName = "placement"

// PlacementConfig is what the controller needs.
type PlacementConfig struct {
	// ShardName is the name of the shard that the controller runs on.
	ShardName string
	// Peers are all shards.
	Peers *peers.Book
	// LogicalClusters are those of the shard, with OwnerIndex by IndexByOwner.
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
}

// NewPlacement returns the controller. Its keys are those of Workspaces, with their shards.
func NewPlacement(config PlacementConfig) *reconcile.Controller[client.Key] {
	a := &askers{self: config.ShardName, peers: config.Peers, clusters: config.LogicalClusters.Lister()}
	p := &placement{
		self: config.ShardName,
		now:  time.Now,
		shard: func(name string) (asker, bool) {
			shard, ok := a.at(name)
			return shard, ok
		},
		owned:   a.owned,
		here:    localSite(config.Peers, config.ShardName, config.LogicalClusters),
		orphans: newOrphans(config.Metrics),
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      PlacementName,
		Reconcile: p.reconcile,
		Workers:   workers,
		Sources: []reconcile.Source[client.Key]{
			a.watch,
			reconcile.FromInformer(config.LogicalClusters, func(lc *corev1alpha1.LogicalCluster) []client.Key {
				if key, ok := askerOf(lc, config.ShardName); ok {
					return []client.Key{key}
				}
				return nil
			}),
		},
	})
}

// asker is another shard, with Workspaces that may ask for logical clusters here.
type asker interface {
	// cached returns what the watch has told about a Workspace, of what decides here.
	cached(key client.Key) (*tenancyv1alpha1.Workspace, bool)
	// live asks the shard for it; nil is that there is none.
	live(ctx context.Context, key client.Key) (*tenancyv1alpha1.Workspace, error)
}

type placement struct {
	self string
	now  func() time.Time
	// shard returns another shard, if all is known by now that it asks for.
	shard func(name string) (asker, bool)
	// owned returns the LogicalClusters here whose owner has a key.
	owned func(key client.Key) []*corev1alpha1.LogicalCluster
	here  logicalClusters

	orphans *orphans
}

func (p *placement) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	shard, known := p.shard(key.Shard)
	if !known {
		return reconcile.Result{}, nil // comes again when it is
	}
	ws, found := shard.cached(key)
	kept := 0
	for _, lc := range p.owned(key) {
		if found && lc.Spec.Owner.UID == ws.UID || lc.DeletionTimestamp != nil {
			continue
		}
		stays, err := p.removeOrphan(ctx, key, shard, lc)
		if err != nil {
			return again(fmt.Errorf("logical cluster %s, whose workspace %s does not exist: %w", logicalcluster.From(lc), key, err))
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
		return again(p.remove(ctx, ws))
	case isScheduling(ws):
		return p.create(ctx, key, shard, ws)
	default:
		return reconcile.Result{}, nil
	}
}

// create creates the LogicalCluster that a Workspace asks for. The watch may be behind: its
// shard is asked whether it waits still. One that is deleted, and released, after that answer
// leaves an orphan, which is then removed.
func (p *placement) create(ctx context.Context, key client.Key, shard asker, seen *tenancyv1alpha1.Workspace) (reconcile.Result, error) {
	// Whose a LogicalCluster of the name is, the Workspace's shard finds out. It may go.
	taken := reconcile.Result{RequeueAfter: observeTimeout}
	if lc, found := p.here.cached(logicalcluster.Name(seen.Annotations[tenancy.ClusterAnnotation])); found {
		if owns(seen, lc) {
			return reconcile.Result{}, nil
		}
		return taken, nil
	}
	ws, err := shard.live(ctx, key)
	if err != nil {
		return again(fmt.Errorf("asking for the workspace: %w", err))
	}
	if ws == nil || ws.DeletionTimestamp != nil || !isScheduling(ws) || ws.Labels[tenancy.TargetLabel] != p.self || ws.Annotations[tenancy.PlacementAnnotation] == "" {
		return reconcile.Result{}, nil // the watch will tell
	}
	lc, err := askedFor(ws)
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
	return again(err)
}

// remove deletes the LogicalCluster of a Workspace that is being deleted.
func (p *placement) remove(ctx context.Context, ws *tenancyv1alpha1.Workspace) error {
	cluster := logicalcluster.Name(ws.Annotations[tenancy.ClusterAnnotation])
	if cluster == "" {
		return nil
	}
	lc, found := p.here.cached(cluster)
	if !found {
		// The informer may not have seen it yet.
		var err error
		if lc, err = p.here.get(ctx, cluster); err != nil {
			return ignoreNotFound(err)
		}
	}
	if lc.DeletionTimestamp != nil || !owns(ws, lc) {
		return nil
	}
	return p.here.remove(ctx, cluster, lc)
}

// removeOrphan deletes a LogicalCluster whose Workspace has gone, or reports that it is kept
// although that has gone.
func (p *placement) removeOrphan(ctx context.Context, key client.Key, shard asker, lc *corev1alpha1.LogicalCluster) (kept bool, err error) {
	return removeOrphan(ctx, key, p.here, lc, p.now(), func(ctx context.Context) (bool, error) {
		ws, err := shard.live(ctx, key)
		return ws != nil && ws.UID == lc.Spec.Owner.UID, err
	})
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
