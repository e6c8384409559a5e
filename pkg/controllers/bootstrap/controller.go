package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Name is the name of the controller.
const Name = "bootstrap"

// maxBackoff is low because failures are common while a server starts.
const maxBackoff = time.Second

// Config configures the controller. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	ShardName string
	// Local reaches the shard itself as system:masters.
	Local               *client.Factory
	LogicalClusters     *client.Informer[*corev1alpha1.LogicalCluster]
	WorkspaceTypes      *client.Informer[*tenancyv1alpha1.WorkspaceType]
	APIExports          *client.Informer[*apisv1alpha2.APIExport]
	ClusterRoles        *client.Informer[*rbacv1.ClusterRole]
	ClusterRoleBindings *client.Informer[*rbacv1.ClusterRoleBinding]
	// Schemas is the metadata of the APIResourceSchemas of root; nil on other shards.
	Schemas *client.Informer[*metav1.PartialObjectMetadata]
	// HomeCreators are the groups with the permission to have home workspaces.
	HomeCreators []string
	// Done is called once, after all logical clusters became Ready with their initial content; it may be nil.
	Done func()
}

// NewBootstrapController returns the controller.
func NewBootstrapController(cfg Config) (*reconcile.Controller[logicalcluster.Name], error) {
	clusters := clustersOf(cfg.ShardName)
	r := &bootstrapReconciler{
		shard: cfg.ShardName, local: cfg.Local, homeCreators: cfg.HomeCreators, done: cfg.Done,
		get: cfg.LogicalClusters.Lister().Get, types: cfg.WorkspaceTypes.Lister().Get, exports: cfg.APIExports.Lister().Get,
		role: cfg.ClusterRoles.Lister().Get, binding: cfg.ClusterRoleBindings.Lister().Get,
		waiting: map[logicalcluster.Name]bool{},
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	sources := []reconcile.Source[logicalcluster.Name]{
		reconcile.FromInformer(cfg.LogicalClusters, clusterIn[*corev1alpha1.LogicalCluster](clusters)),
		reconcile.OnDelete(cfg.WorkspaceTypes, clusterIn[*tenancyv1alpha1.WorkspaceType](clusters)),
		reconcile.OnDelete(cfg.APIExports, clusterIn[*apisv1alpha2.APIExport](clusters)),
		reconcile.OnDelete(cfg.ClusterRoles, clusterIn[*rbacv1.ClusterRole](clusters)),
		reconcile.OnDelete(cfg.ClusterRoleBindings, clusterIn[*rbacv1.ClusterRoleBinding](clusters)),
	}
	if cfg.Schemas != nil {
		r.schemas = cfg.Schemas.Lister().Get
		sources = append(sources, reconcile.OnDelete(cfg.Schemas, clusterIn[*metav1.PartialObjectMetadata](clusters)))
	}
	for _, cluster := range clusters {
		r.waiting[cluster] = true
		sources = append(sources, reconcile.Once(cluster))
	}
	return reconcile.New(reconcile.Config[logicalcluster.Name]{
		Name: Name, Reconcile: r.reconcile, Workers: len(clusters), MaxBackoff: maxBackoff, Sources: sources,
	}), nil
}

// clusterIn returns a function that returns the logical cluster of an object if it is one of clusters.
func clusterIn[T client.Object](clusters []logicalcluster.Name) func(T) []logicalcluster.Name {
	return func(obj T) []logicalcluster.Name {
		if cluster := logicalcluster.From(obj); slices.Contains(clusters, cluster) {
			return []logicalcluster.Name{cluster}
		}
		return nil
	}
}

type bootstrapReconciler struct {
	shard        string
	local        *client.Factory
	shipped      shipment
	homeCreators []string

	get     func(key client.Key) (*corev1alpha1.LogicalCluster, error)
	types   func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error)
	exports func(key client.Key) (*apisv1alpha2.APIExport, error)
	schemas func(key client.Key) (*metav1.PartialObjectMetadata, error)
	role    func(key client.Key) (*rbacv1.ClusterRole, error)
	binding func(key client.Key) (*rbacv1.ClusterRoleBinding, error)

	mu      sync.Mutex
	waiting map[logicalcluster.Name]bool // logical clusters that have not been complete yet
	done    func()
}

func (r *bootstrapReconciler) reconcile(ctx context.Context, cluster logicalcluster.Name) (reconcile.Result, error) {
	scope := r.local.Cluster(cluster.Path())
	lc, err := r.get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	if apierrors.IsNotFound(err) {
		lc, err = kinds.LogicalClusters.In(scope).Create(ctx, logicalClusterOf(cluster, r.shard), metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, fmt.Errorf("creating the LogicalCluster of %s: %w", cluster, err)
	}
	if err := r.ensurePolicy(ctx, scope, cluster); err != nil {
		return reconcile.Result{}, err
	}
	if cluster == core.RootCluster {
		if err := r.ensureShipped(ctx, scope); err != nil {
			return reconcile.Result{}, err
		}
	}
	if lc != nil && lc.Status.Phase == corev1alpha1.LogicalClusterPhaseReady {
		r.complete(cluster)
	}
	return reconcile.Result{}, nil // the logicalcluster controller initializes it
}

func (r *bootstrapReconciler) ensurePolicy(ctx context.Context, scope client.Scope, cluster logicalcluster.Name) error {
	objects := policyOf(cluster, r.homeCreators)
	roles := keeper[*rbacv1.ClusterRole, *rbacv1.ClusterRoleList]{r.role, kinds.ClusterRoles.In(scope), mergeRole}
	bindings := keeper[*rbacv1.ClusterRoleBinding, *rbacv1.ClusterRoleBindingList]{r.binding, kinds.ClusterRoleBindings.In(scope), mergeBinding}
	return errors.Join(
		roles.ensure(ctx, cluster, objects.ClusterRoles),
		bindings.ensure(ctx, cluster, objects.ClusterRoleBindings),
	)
}

// complete records that a logical cluster is complete, and calls done if all are.
func (r *bootstrapReconciler) complete(cluster logicalcluster.Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waiting[cluster] {
		return
	}
	delete(r.waiting, cluster)
	if len(r.waiting) == 0 && r.done != nil {
		r.done()
	}
}

type shipment struct {
	types   []*tenancyv1alpha1.WorkspaceType
	exports []*apisv1alpha2.APIExport
	schemas []*apisv1alpha1.APIResourceSchema
}

func (r *bootstrapReconciler) load() error {
	types, err := config.RootWorkspaceTypes()
	if err != nil {
		return err
	}
	for _, wt := range types {
		want, err := workspaceTypes.shipped(wt)
		if err != nil {
			return err
		}
		r.shipped.types = append(r.shipped.types, want)
	}
	exports, schemas, err := config.RootExports()
	if err != nil {
		return err
	}
	for _, export := range exports {
		want, err := apiExports.shipped(export)
		if err != nil {
			return err
		}
		r.shipped.exports = append(r.shipped.exports, want)
	}
	r.shipped.schemas = schemas
	return nil
}

// ensureShipped creates missing initial content of root and updates content of older versions. Schemas never change, and
// those of older versions are retained.
func (r *bootstrapReconciler) ensureShipped(ctx context.Context, scope client.Scope) error {
	types := keeper[*tenancyv1alpha1.WorkspaceType, *tenancyv1alpha1.WorkspaceTypeList]{r.types, kinds.WorkspaceTypes.In(scope), merging(workspaceTypes)}
	exports := keeper[*apisv1alpha2.APIExport, *apisv1alpha2.APIExportList]{r.exports, kinds.APIExports.In(scope), merging(apiExports)}
	return errors.Join(
		types.ensure(ctx, core.RootCluster, r.shipped.types),
		r.ensureSchemas(ctx, scope),
		exports.ensure(ctx, core.RootCluster, r.shipped.exports),
	)
}

func merging[T client.Object](c content[T]) func(existing, want T) (T, error) {
	return func(existing, want T) (T, error) { return c.updated(existing, want), nil }
}

func (r *bootstrapReconciler) ensureSchemas(ctx context.Context, scope client.Scope) error {
	var errs []error
	for _, want := range r.shipped.schemas {
		_, err := r.schemas(client.Key{Cluster: core.RootCluster, Name: want.Name})
		if apierrors.IsNotFound(err) {
			_, err = kinds.APIResourceSchemas.In(scope).Create(ctx, want, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("APIResourceSchema %s in root: %w", want.Name, err))
		}
	}
	return errors.Join(errs...)
}
