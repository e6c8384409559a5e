package workspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

const workers = 16

// Config is what the controller needs.
type Config struct {
	// ShardName is the name of the shard that the controller runs on.
	ShardName string
	// Local reaches that shard as system:masters, and Objects are what it stores.
	Local   *client.Factory
	Objects reconcile.Objects
	// Peers are all shards.
	Peers *peers.Book

	// Workspaces and LogicalClusters are those of all logical clusters of the
	// shard. LogicalClusters has OwnerIndex by IndexByOwner.
	Workspaces      *client.Informer[*tenancyv1alpha1.Workspace]
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]

	// Shards are the registered shards.
	Shards *client.Informer[*corev1alpha1.Shard]
	// Types looks the types of Workspaces up, in informers that are
	// WorkspaceTypes.
	Types          tenancy.TypeLookup
	WorkspaceTypes *replicas.Dual[*tenancyv1alpha1.WorkspaceType]
	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
}

// New returns the controller.
func New(config Config) *reconcile.Controller[client.Key] {
	s := &sites{
		self:  config.ShardName,
		local: localSite(config.Peers, config.ShardName, config.LogicalClusters),
		peers: config.Peers,
	}
	workspaces, clusters, shards := config.Workspaces.Lister(), config.LogicalClusters.Lister(), config.Shards.Lister()
	r := &reconciler{
		self: config.ShardName,
		now:  time.Now,
		get:  workspaces.Get,
		parent: func(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
			return clusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
		},
		shards: func() []*corev1alpha1.Shard { return shards.List(nil) },
		silent: func(shard string) bool {
			peer := config.Peers.Named(shard)
			return peer != nil && peer.Silent()
		},
		types: config.Types,
		at: func(shard string) (logicalClusters, error) {
			site, err := s.at(shard)
			if err != nil {
				return nil, err
			}
			return site, nil
		},
		commit: func(ctx context.Context, old, updated *tenancyv1alpha1.Workspace) (*tenancyv1alpha1.Workspace, error) {
			workspaces := kinds.Workspaces.In(config.Local.Cluster(logicalcluster.From(old).Path()))
			return reconcile.CommitStored(ctx, config.Objects, kinds.Workspaces.GroupResource(), workspaces, old, updated)
		},
		remove: func(ctx context.Context, ws *tenancyv1alpha1.Workspace) error {
			return kinds.Workspaces.In(config.Local.Cluster(logicalcluster.From(ws).Path())).Delete(ctx, ws.Name,
				metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(ws.UID))})
		},
		event: eventIn(config.Local),
		owned: func(key client.Key) []*corev1alpha1.LogicalCluster {
			owned, _ := clusters.ByIndex(OwnerIndex, key.String()) // fails only if there is no index
			return owned
		},
		here:    s.local,
		orphans: newOrphans(config.Metrics),
		exists: func(ctx context.Context, key client.Key, uid types.UID) (bool, error) {
			ws, err := live(ctx, config.Local, key)
			return ws != nil && ws.UID == uid, err
		},
	}

	// What cannot be scheduled looks again when there is something to choose.
	waiting := func() []client.Key { return unfinished(workspaces.List(nil)) }
	sources := []reconcile.Source[client.Key]{
		reconcile.Keys(config.Workspaces),
		reconcile.FromInformer(config.LogicalClusters, func(lc *corev1alpha1.LogicalCluster) []client.Key {
			if key, ok := ownerOf(lc); ok {
				return []client.Key{key}
			}
			return nil
		}),
		s.watch,
		r.offers(config.Shards, waiting),
		reconcile.FromInformer(config.WorkspaceTypes, func(wt *tenancyv1alpha1.WorkspaceType) []client.Key {
			return r.waits.Of(tenancy.TypeIDs(clusters, wt)...)
		}),
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      Name,
		Reconcile: r.reconcile,
		Workers:   workers,
		Sources:   sources,
	})
}

// offers is the source of Workspaces that wait, when a shard comes or goes, or may take some
// which it did not take. That it tells another load is no reason, but for what was claimed.
func (r *reconciler) offers(shards *client.Informer[*corev1alpha1.Shard], waiting func() []client.Key) reconcile.Source[client.Key] {
	return func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
		all := func() {
			for _, key := range waiting() {
				queue.Add(key)
			}
		}
		return shards.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
			OnAdd: func(*corev1alpha1.Shard, bool) { all() },
			OnUpdate: func(old, shard *corev1alpha1.Shard) {
				before := unfit(old, labels.Everything(), r.known(old).claims)
				r.dropClaims(old, shard)
				if old.Spec != shard.Spec || !maps.Equal(old.Labels, shard.Labels) || before != unfit(shard, labels.Everything(), r.known(shard).claims) {
					all()
				}
			},
			OnDelete: func(*corev1alpha1.Shard, bool) { all() },
		}).Remove, nil
	}
}

// dropClaims drops as many of the oldest claims of a shard as it tells of logical clusters more
// than before. What others have claimed, and what was deleted, makes that too many or too few,
// for as long as claims count.
func (r *reconciler) dropClaims(old, shard *corev1alpha1.Shard) {
	before, _ := shardload.OfShard(old)
	now, _ := shardload.OfShard(shard)
	r.claims.drop(shard.Name, now.Workspaces.Used-before.Workspaces.Used, r.now())
}

// live asks a shard for a Workspace; nil is that there is none.
func live(ctx context.Context, shard *client.Factory, key client.Key) (*tenancyv1alpha1.Workspace, error) {
	ws, err := kinds.Workspaces.In(shard.Cluster(key.Cluster.Path())).Get(ctx, key.Name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return ws, err
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name == key.Name {
		return nil, nil //nolint:nilnil // there is none
	}
	return nil, fmt.Errorf("the shard does not serve workspaces yet: %w", err)
}

// unfinished returns the keys of the Workspaces that wait for being scheduled
// or for being deleted.
func unfinished(all []*tenancyv1alpha1.Workspace) []client.Key {
	var keys []client.Key
	for _, ws := range all {
		if ws.DeletionTimestamp != nil || isScheduling(ws) {
			keys = append(keys, client.KeyOf(ws))
		}
	}
	return keys
}
