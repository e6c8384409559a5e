// Package bootstrap creates the logical clusters that have no Workspace. Every shard has system:admin, with the roles
// and bindings that apply to all logical clusters. The root shard also has root, with its WorkspaceTypes and
// bindings.
//
// It writes differences to the desired state at each start and after changes. Edits of a WorkspaceType are retained until a
// newer version of Shardplane contains other content for it. Roles and bindings are completed, unless they opt out.
package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/authz/policy"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Name is the name of the controller.
const Name = "bootstrap"

// maxBackoff is low because failures are common while a server starts.
const maxBackoff = time.Second

// Config configures the controller. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	ShardName           string
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
	r := &bootstrapReconciler{Config: cfg, waiting: map[logicalcluster.Name]bool{}}
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

// clusterIn returns the logical cluster of an object if it is one of clusters.
func clusterIn[T client.Object](clusters []logicalcluster.Name) func(T) []logicalcluster.Name {
	return func(obj T) []logicalcluster.Name {
		if cluster := logicalcluster.From(obj); slices.Contains(clusters, cluster) {
			return []logicalcluster.Name{cluster}
		}
		return nil
	}
}

type bootstrapReconciler struct {
	Config

	shipped struct {
		types   []*tenancyv1alpha1.WorkspaceType
		exports []*apisv1alpha2.APIExport
		schemas []*apisv1alpha1.APIResourceSchema
	}

	mu      sync.Mutex
	waiting map[logicalcluster.Name]bool // logical clusters that have not been complete yet
}

func (r *bootstrapReconciler) reconcile(ctx context.Context, cluster logicalcluster.Name) (reconcile.Result, error) {
	scope := r.Local.Cluster(cluster.Path())
	lc, err := r.LogicalClusters.Lister().Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	if apierrors.IsNotFound(err) {
		lc, err = kinds.LogicalClusters.In(scope).Create(ctx, logicalClusterOf(cluster, r.ShardName), metav1.CreateOptions{})
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
	objects := policyOf(cluster, r.HomeCreators)
	roles := keeper[*rbacv1.ClusterRole, *rbacv1.ClusterRoleList]{r.ClusterRoles.Lister().Get, kinds.ClusterRoles.In(scope), mergeRole}
	bindings := keeper[*rbacv1.ClusterRoleBinding, *rbacv1.ClusterRoleBindingList]{r.ClusterRoleBindings.Lister().Get, kinds.ClusterRoleBindings.In(scope), mergeBinding}
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
	if len(r.waiting) == 0 && r.Done != nil {
		r.Done()
	}
}

func (r *bootstrapReconciler) load() error {
	types, err := config.RootWorkspaceTypes()
	if err != nil {
		return err
	}
	if r.shipped.types, err = workspaceTypes.allShipped(types); err != nil {
		return err
	}
	exports, schemas, err := config.RootExports()
	if err != nil {
		return err
	}
	r.shipped.schemas = schemas
	r.shipped.exports, err = apiExports.allShipped(exports)
	return err
}

// ensureShipped creates missing content of root and updates older versions. Schemas never change, and are retained.
func (r *bootstrapReconciler) ensureShipped(ctx context.Context, scope client.Scope) error {
	schemas := keeper[*apisv1alpha1.APIResourceSchema, *apisv1alpha1.APIResourceSchemaList]{clients: kinds.APIResourceSchemas.In(scope)}
	schemas.get = func(key client.Key) (*apisv1alpha1.APIResourceSchema, error) {
		_, err := r.Schemas.Lister().Get(key)
		return nil, err
	}
	types := keeper[*tenancyv1alpha1.WorkspaceType, *tenancyv1alpha1.WorkspaceTypeList]{r.WorkspaceTypes.Lister().Get, kinds.WorkspaceTypes.In(scope), workspaceTypes.merge}
	exports := keeper[*apisv1alpha2.APIExport, *apisv1alpha2.APIExportList]{r.APIExports.Lister().Get, kinds.APIExports.In(scope), apiExports.merge}
	return errors.Join(
		types.ensure(ctx, core.RootCluster, r.shipped.types),
		schemas.ensure(ctx, core.RootCluster, r.shipped.schemas),
		exports.ensure(ctx, core.RootCluster, r.shipped.exports),
	)
}

// contentAnnotation is the hash of the last installed content.
//
//reference:metadata WorkspaceTypes and APIExports of Shardplane | bootstrap controller
const contentAnnotation = "internal.shardplane.io/bootstrap-content"

// clustersOf returns the logical clusters that each shard of this kind has.
func clustersOf(shard string) []logicalcluster.Name {
	if shard == corev1alpha1.RootShard {
		return []logicalcluster.Name{tenancy.AdminCluster, core.RootCluster, tenancy.HomesCluster}
	}
	return []logicalcluster.Name{tenancy.AdminCluster}
}

func logicalClusterOf(cluster logicalcluster.Name, shard string) *corev1alpha1.LogicalCluster {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: corev1alpha1.LogicalClusterName,
		Annotations: map[string]string{
			core.LogicalClusterPathAnnotationKey:          cluster.String(),
			corev1alpha1.LogicalClusterShardAnnotationKey: shard,
		},
	}}
	if cluster == core.RootCluster {
		lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey] = cluster.Path().Join(string(tenancyv1alpha1.RootWorkspaceTypeName)).String()
	}
	return lc
}

type content[T client.Object] struct {
	of          func(T) any
	copyContent func(into, from T) // copies the content
}

var workspaceTypes = content[*tenancyv1alpha1.WorkspaceType]{
	of:          func(wt *tenancyv1alpha1.WorkspaceType) any { return wt.Spec },
	copyContent: func(into, from *tenancyv1alpha1.WorkspaceType) { into.Spec = *from.Spec.DeepCopy() },
}

var apiExports = content[*apisv1alpha2.APIExport]{
	of: func(export *apisv1alpha2.APIExport) any { return export.Spec },
	copyContent: func(into, from *apisv1alpha2.APIExport) {
		identity := into.Spec.Identity // generated on this installation
		into.Spec = *from.Spec.DeepCopy()
		into.Spec.Identity = identity
	},
}

func (c content[T]) shipped(obj T) (T, error) {
	raw, err := json.Marshal(c.of(obj))
	if err != nil {
		return obj, fmt.Errorf("encoding %T %s: %w", obj, obj.GetName(), err)
	}
	sum := sha256.Sum256(raw)
	obj, _ = obj.DeepCopyObject().(T)
	annotate(obj, contentAnnotation, hex.EncodeToString(sum[:8]))
	annotate(obj, core.LogicalClusterPathAnnotationKey, core.RootCluster.String())
	return obj, nil
}

func (c content[T]) allShipped(objects []T) (all []T, err error) {
	for _, obj := range objects {
		want, err := c.shipped(obj)
		if err != nil {
			return nil, err
		}
		all = append(all, want)
	}
	return all, nil
}

func annotate(obj client.Object, key, value string) {
	annotations := maps.Clone(obj.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	obj.SetAnnotations(annotations)
}

// versionOf returns the version of an object's content; 0 for releases without versions.
func versionOf(obj client.Object) int {
	version, err := strconv.Atoi(obj.GetAnnotations()[tenancy.ContentVersionAnnotation])
	if err != nil {
		return 0
	}
	return version
}

//nolint:unparam // the type of keeper.merge
func (c content[T]) merge(existing, want T) (T, error) { return c.updated(existing, want), nil }

// updated returns an existing object with the shipped content. The object, including edits, does not change if its
// shipped content was the same or newer, because replicas of two versions run concurrently during an upgrade.
func (c content[T]) updated(existing, want T) T {
	if versionOf(existing) > versionOf(want) {
		return existing
	}
	result, _ := existing.DeepCopyObject().(T)
	if existing.GetAnnotations()[contentAnnotation] != want.GetAnnotations()[contentAnnotation] {
		c.copyContent(result, want)
	}
	for key, value := range want.GetAnnotations() {
		annotate(result, key, value)
	}
	return result
}

// policyOf returns the roles and bindings that a logical cluster starts with.
func policyOf(cluster logicalcluster.Name, homeCreators []string) policy.Objects {
	switch cluster {
	case tenancy.AdminCluster:
		return policy.System()
	case core.RootCluster:
		return policy.Root(homeCreators...)
	default:
		return policy.Objects{}
	}
}

// keeper creates and completes the shipped objects of one resource.
type keeper[T client.Object, L runtime.Object] struct {
	get     func(key client.Key) (T, error)
	clients *client.Client[T, L]
	// merge adds missing parts of want to existing; nil means that existing objects do not change.
	merge func(existing, want T) (T, error)
}

func (k keeper[T, L]) ensure(ctx context.Context, cluster logicalcluster.Name, wanted []T) error {
	var errs []error
	for _, want := range wanted {
		if err := k.ensureOne(ctx, cluster, want); err != nil {
			errs = append(errs, fmt.Errorf("%T %s in %s: %w", want, want.GetName(), cluster, err))
		}
	}
	return errors.Join(errs...)
}

func (k keeper[T, L]) ensureOne(ctx context.Context, cluster logicalcluster.Name, want T) error {
	existing, err := k.get(client.Key{Cluster: cluster, Name: want.GetName()})
	if apierrors.IsNotFound(err) {
		if _, err = k.clients.Create(ctx, want, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			return err
		}
		existing, err = k.clients.Get(ctx, want.GetName(), metav1.GetOptions{})
	}
	if err != nil || k.merge == nil {
		return err
	}
	merged, err := k.merge(existing, want)
	if err != nil {
		return err
	}
	_, err = reconcile.Commit(ctx, k.clients, existing, merged)
	return err
}

// mergeRole adds missing rules, unless existing opts out. Additional rules are retained.
func mergeRole(existing, want *rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
	compared, err := (&reconciliation.ReconcileRoleOptions{
		Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: want.DeepCopy()}, Client: comparedRole{existing: existing},
	}).Run()
	if err != nil {
		return nil, err
	}
	merged, ok := compared.Role.(reconciliation.ClusterRoleRuleOwner)
	if !ok || compared.Protected || compared.Operation == reconciliation.ReconcileNone {
		return existing, nil
	}
	return merged.ClusterRole, nil
}

// mergeBinding adds missing subjects, unless existing opts out.
func mergeBinding(existing, want *rbacv1.ClusterRoleBinding) (*rbacv1.ClusterRoleBinding, error) {
	if existing.RoleRef != want.RoleRef {
		return nil, fmt.Errorf("it references %s instead of %s: delete it, then it is recreated", existing.RoleRef.Name, want.RoleRef.Name)
	}
	compared, err := (&reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: want.DeepCopy()},
		Client:      comparedBinding{existing: existing},
		// The groups are configured by a flag, which may also remove groups.
		RemoveExtraSubjects: want.Name == policy.HomeCreate,
	}).Run()
	if err != nil {
		return nil, err
	}
	merged, ok := compared.RoleBinding.(reconciliation.ClusterRoleBindingAdapter)
	if !ok || compared.Protected || compared.Operation == reconciliation.ReconcileNone {
		return existing, nil
	}
	return merged.ClusterRoleBinding, nil
}

// comparedRole returns the existing role to a comparison, which does not write.
type comparedRole struct {
	reconciliation.RuleOwnerModifier

	existing *rbacv1.ClusterRole
}

func (c comparedRole) Get(string, string) (reconciliation.RuleOwner, error) {
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: c.existing}, nil
}

// comparedBinding returns the existing binding to a comparison, which only calls Get.
type comparedBinding struct {
	reconciliation.RoleBindingModifier

	existing *rbacv1.ClusterRoleBinding
}

func (c comparedBinding) Get(string, string) (reconciliation.RoleBinding, error) {
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: c.existing}, nil
}
