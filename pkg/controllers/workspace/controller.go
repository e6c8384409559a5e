// Package workspace creates the logical cluster of each Workspace on a chosen shard, and deletes it with the Workspace.
//
//	Workspace on shard A                       LogicalCluster on shard B (may be A)
//	────────────────────                       ────────────────────────────────────
//	created by a user
//	1 claim: name, shard, type, URL, finalizer
//	2 ─────────── watch, live read ─────────►  created, owner = Workspace
//	3 phase Initializing                       default namespace, initializers
//	                                           phase Ready
//	4 phase Ready  ◄──────────────── watch ──
//
//	deleted by a user
//	1 ─────────────────────────────── watch ►  deleted after its content
//	2 finalizer removed ◄─────────── watch ──
//
// The claim is written before any other action. Therefore, there is exactly one logical cluster for a Workspace,
// regardless of failures and retries. A shard never writes to other shards. It only watches them, restricted to the
// objects that concern it. The claim contains the request, which the placement controller of shard B fulfills. Both
// shards verify the state of the other one with a live read before irreversible steps. If A is chosen, the workspace
// controller does all of this.
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

// Config configures the controllers.
type Config struct {
	ShardName string
	// Local reaches this shard as system:masters, and Objects is its storage.
	Local   *client.Factory
	Objects reconcile.Objects
	// Peers are all shards.
	Peers *peers.Book

	// Workspaces and LogicalClusters contain all objects of this shard. LogicalClusters must have OwnerIndex.
	Workspaces      *client.Informer[*tenancyv1alpha1.Workspace]
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	// Shards are the registered shards.
	Shards         *client.Informer[*corev1alpha1.Shard]
	Types          tenancy.TypeLookup
	WorkspaceTypes *replicas.Dual[*tenancyv1alpha1.WorkspaceType]
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// NewWorkspaceController returns the controller.
func NewWorkspaceController(config Config) *reconcile.Controller[client.Key] {
	s := &sites{self: config.ShardName, local: localSite(config.Peers, config.ShardName, config.LogicalClusters), peers: config.Peers}
	workspaces, clusters, shards := config.Workspaces.Lister(), config.LogicalClusters.Lister(), config.Shards.Lister()
	r := &workspaceReconciler{
		self: config.ShardName, now: time.Now, get: workspaces.Get,
		parent: func(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
			return clusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
		},
		shards: func() []*corev1alpha1.Shard { return shards.List(nil) },
		silent: func(shard string) bool {
			peer := config.Peers.Named(shard)
			return peer != nil && peer.Silent()
		},
		types: config.Types, at: s.at,
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
			owned, _ := clusters.ByIndex(OwnerIndex, key.String()) // fails only if the index does not exist
			return owned
		},
		localClusters: s.local, orphans: newOrphans(config.Metrics),
		exists: func(ctx context.Context, key client.Key, uid types.UID) (bool, error) {
			ws, err := live(ctx, config.Local, key)
			return ws != nil && ws.UID == uid, err
		},
	}

	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile, Workers: workers,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Workspaces),
			reconcile.FromInformer(config.LogicalClusters, ownersOf),
			s.watch,
			reconcile.FromChanges(config.Shards, r.mayAcceptRejected, func() []client.Key { return unfinished(workspaces.List(nil)) }),
			reconcile.FromInformer(config.WorkspaceTypes, func(wt *tenancyv1alpha1.WorkspaceType) []client.Key {
				return r.waits.Of(tenancy.TypeIDs(clusters, wt)...)
			}),
		},
	})
}

// mayAcceptRejected reports whether a changed shard may accept Workspaces that it has rejected before.
func (r *workspaceReconciler) mayAcceptRejected(old, shard *corev1alpha1.Shard) bool {
	before := rejectionReason(old, labels.Everything(), r.observed(old).claims)
	r.dropClaims(old, shard)
	return old.Spec != shard.Spec || !maps.Equal(old.Labels, shard.Labels) || before != rejectionReason(shard, labels.Everything(), r.observed(shard).claims)
}

// dropClaims drops as many of the oldest claims of a shard as its reported number of logical clusters has increased. The result
// may be inexact until claims expire, because other processes place logical clusters, too, and others are deleted.
func (r *workspaceReconciler) dropClaims(old, shard *corev1alpha1.Shard) {
	before, _ := shardload.OfShard(old)
	now, _ := shardload.OfShard(shard)
	r.claims.drop(shard.Name, now.Workspaces.Used-before.Workspaces.Used, r.now())
}

// live reads a Workspace from a shard. It returns nil if it does not exist.
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

func unfinished(all []*tenancyv1alpha1.Workspace) []client.Key {
	var keys []client.Key
	for _, ws := range all {
		if ws.DeletionTimestamp != nil || isScheduling(ws) {
			keys = append(keys, client.KeyOf(ws))
		}
	}
	return keys
}
