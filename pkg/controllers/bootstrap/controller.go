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

// maxBackoff is low because the first moments of a server may fail.
const maxBackoff = time.Second

// Config is what the controller needs. The informers are those of all logical
// clusters of the shard.
type Config struct {
	// ShardName is the name of the shard.
	ShardName string
	// Local reaches the shard itself as system:masters.
	Local           *client.Factory
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	WorkspaceTypes  *client.Informer[*tenancyv1alpha1.WorkspaceType]
	APIExports      *client.Informer[*apisv1alpha2.APIExport]
	// Schemas are the APIResourceSchemas of root, of which metadata will do; nil on other
	// shards than root's.
	Schemas *client.Informer[*metav1.PartialObjectMetadata]
	// ClusterRoles and ClusterRoleBindings are what decides on access.
	ClusterRoles        *client.Informer[*rbacv1.ClusterRole]
	ClusterRoleBindings *client.Informer[*rbacv1.ClusterRoleBinding]
	// HomeCreators are the groups whose members may have home workspaces.
	HomeCreators []string
	// Done is told when all logical clusters are Ready with what belongs to
	// them for the first time; it may be nil.
	Done func()
}

// New returns the controller.
func New(cfg Config) (*reconcile.Controller[logicalcluster.Name], error) {
	clusters := clustersOf(cfg.ShardName)
	r := &reconciler{
		shard:   cfg.ShardName,
		local:   cfg.Local,
		get:     cfg.LogicalClusters.Lister().Get,
		types:   cfg.WorkspaceTypes.Lister().Get,
		exports: cfg.APIExports.Lister().Get,
		role:    cfg.ClusterRoles.Lister().Get,
		binding: cfg.ClusterRoleBindings.Lister().Get,
		waiting: map[logicalcluster.Name]bool{},

		homeCreators: cfg.HomeCreators,
		done:         cfg.Done,
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	ours := func(cluster logicalcluster.Name) []logicalcluster.Name {
		if slices.Contains(clusters, cluster) {
			return []logicalcluster.Name{cluster}
		}
		return nil
	}
	sources := []reconcile.Source[logicalcluster.Name]{
		reconcile.FromInformer(cfg.LogicalClusters, func(lc *corev1alpha1.LogicalCluster) []logicalcluster.Name { return ours(logicalcluster.From(lc)) }),
		reconcile.OnDelete(cfg.WorkspaceTypes, func(wt *tenancyv1alpha1.WorkspaceType) []logicalcluster.Name { return ours(logicalcluster.From(wt)) }),
		reconcile.OnDelete(cfg.APIExports, func(export *apisv1alpha2.APIExport) []logicalcluster.Name { return ours(logicalcluster.From(export)) }),
		reconcile.OnDelete(cfg.ClusterRoles, func(role *rbacv1.ClusterRole) []logicalcluster.Name { return ours(logicalcluster.From(role)) }),
		reconcile.OnDelete(cfg.ClusterRoleBindings, func(binding *rbacv1.ClusterRoleBinding) []logicalcluster.Name {
			return ours(logicalcluster.From(binding))
		}),
	}
	if cfg.Schemas != nil {
		r.schemas = cfg.Schemas.Lister().Get
		sources = append(sources, reconcile.OnDelete(cfg.Schemas, func(*metav1.PartialObjectMetadata) []logicalcluster.Name { return ours(core.RootCluster) }))
	}
	for _, cluster := range clusters {
		r.waiting[cluster] = true
		sources = append(sources, reconcile.Once(cluster))
	}
	return reconcile.New(reconcile.Config[logicalcluster.Name]{
		Name:       Name,
		Reconcile:  r.reconcile,
		Workers:    len(clusters),
		MaxBackoff: maxBackoff,
		Sources:    sources,
	}), nil
}

type reconciler struct {
	shard   string
	local   *client.Factory
	shipped shipment
	// homeCreators are those of Config.
	homeCreators []string

	get     func(key client.Key) (*corev1alpha1.LogicalCluster, error)
	types   func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error)
	exports func(key client.Key) (*apisv1alpha2.APIExport, error)
	schemas func(key client.Key) (*metav1.PartialObjectMetadata, error)
	role    func(key client.Key) (*rbacv1.ClusterRole, error)
	binding func(key client.Key) (*rbacv1.ClusterRoleBinding, error)

	mu sync.Mutex
	// waiting are the logical clusters that have not been complete yet.
	waiting map[logicalcluster.Name]bool
	done    func()
}

func (r *reconciler) reconcile(ctx context.Context, cluster logicalcluster.Name) (reconcile.Result, error) {
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
	return reconcile.Result{}, nil // the controller of logical clusters goes on
}

// ensurePolicy brings the roles and bindings of a logical cluster about.
func (r *reconciler) ensurePolicy(ctx context.Context, scope client.Scope, cluster logicalcluster.Name) error {
	objects := policyOf(cluster, r.homeCreators)
	roles := keeper[*rbacv1.ClusterRole, *rbacv1.ClusterRoleList]{r.role, kinds.ClusterRoles.In(scope), mergeRole}
	bindings := keeper[*rbacv1.ClusterRoleBinding, *rbacv1.ClusterRoleBindingList]{r.binding, kinds.ClusterRoleBindings.In(scope), mergeBinding}
	return errors.Join(
		roles.ensure(ctx, cluster, objects.ClusterRoles),
		bindings.ensure(ctx, cluster, objects.ClusterRoleBindings),
	)
}

// complete notes that a logical cluster is complete, and tells when all are.
func (r *reconciler) complete(cluster logicalcluster.Name) {
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

// shipment is what root comes with.
type shipment struct {
	types   []*tenancyv1alpha1.WorkspaceType
	exports []*apisv1alpha2.APIExport
	schemas []*apisv1alpha1.APIResourceSchema
}

// load reads what is embedded.
func (r *reconciler) load() error {
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

// ensureShipped creates what root lacks of what it comes with, and updates what came with
// an older version. Schemas never change, and those of older versions stay.
func (r *reconciler) ensureShipped(ctx context.Context, scope client.Scope) error {
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

func (r *reconciler) ensureSchemas(ctx context.Context, scope client.Scope) error {
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
