// Package logicalcluster manages the lifecycle of the logical clusters of a shard, which LogicalCluster objects describe.
//
//	created ─► Scheduling ─► Initializing ─► Ready ◄─► Inactive
//	             │ namespace    │ until          (annotation core.kcp.io/inactive)
//	             │ "default"    │ status.initializers
//	             │ exists       │ is empty; package defaults handles the one for the default
//	             │              │ bindings of the type
//
//	deleted ─► Terminating ─► Deleting ─► removed
//	             │ until         │ workspaces, then all other content, then
//	             │ status.       │ namespaces, then CustomResourceDefinitions;
//	             │ terminators   │ each stage begins when the previous one is empty,
//	             │ is empty      │ and everything is checked again at the end
//
// Every step can be repeated, because the complete state is stored in the object.
package logicalcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/authz/policy"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster/defaults"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Name is the name of the controller that initializes logical clusters.
const Name = "logicalcluster"

const workers = 16

// NewLogicalClusterController returns the controller that initializes logical clusters.
func NewLogicalClusterController(config Config) *reconcile.Controller[client.Key] {
	bindings, sources := defaults.NewDefaultBindings(config.Defaults)
	clusters := config.LogicalClusters.Lister()
	r := &logicalClusterReconciler{
		externalURL: config.ExternalURL, now: time.Now, get: clusters.Get, namespaces: newInitialNamespaces(config),
		hasBinding: func(cluster logicalcluster.Name, name string) bool {
			_, err := config.ClusterRoleBindings.Lister().Get(client.Key{Cluster: cluster, Name: name})
			return err == nil
		},
		createBinding: func(ctx context.Context, cluster logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error {
			_, err := kinds.ClusterRoleBindings.In(config.Local.Cluster(cluster.Path())).Create(ctx, binding, metav1.CreateOptions{})
			return err
		},
		defaults: bindings, unreadable: config.Unreadable.Describe, writer: writer{commit: config.commit()},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile, Workers: workers,
		Sources: append(sources, config.Unreadable.source,
			reconcile.Keys(config.LogicalClusters),
			reconcile.OnDelete(config.Namespaces, func(ns *corev1.Namespace) []client.Key {
				if ns.Name != metav1.NamespaceDefault && ns.Name != metav1.NamespaceSystem {
					return nil
				}
				return keyOf(logicalcluster.From(ns))
			}),
		),
	})
}

type logicalClusterReconciler struct {
	externalURL   string
	now           func() time.Time
	get           func(key client.Key) (*corev1alpha1.LogicalCluster, error)
	namespaces    *initialNamespaces
	hasBinding    func(cluster logicalcluster.Name, name string) bool
	createBinding func(ctx context.Context, cluster logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error
	unreadable    func(ctx context.Context, cluster logicalcluster.Name) (string, error)
	// defaults is a *defaults.Bindings.
	defaults interface {
		Make(ctx context.Context, lc *corev1alpha1.LogicalCluster) (updated *corev1alpha1.LogicalCluster, again bool, err error)
		Note(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster
		Forget(cluster logicalcluster.Name)
	}
	writer
}

func (r *logicalClusterReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := r.get(key)
	lc, exists := r.latest.Of(key, cached, err == nil)
	if key.Name != corev1alpha1.LogicalClusterName {
		return reconcile.Result{}, nil
	}
	if !exists || lc.DeletionTimestamp != nil {
		r.defaults.Forget(key.Cluster)
		r.namespaces.turns.Forget(key.Cluster)
		return reconcile.Result{}, nil // handled by the deletion controller
	}
	return r.initialize(ctx, lc)
}

func (r *logicalClusterReconciler) initialize(ctx context.Context, lc *corev1alpha1.LogicalCluster) (reconcile.Result, error) {
	// Bindings are created first, because they are processed concurrently with the following steps.
	next, again, failed := r.defaults.Make(ctx, advance(lc, r.externalURL))
	wait, err := r.namespaces.make(ctx, lc, r.now())
	result := reconcile.Result{Backoff: again, RequeueAfter: wait}
	if err != nil && !isInitialized(lc) {
		return reconcile.Result{}, err
	}
	failed = errors.Join(failed, err)
	if err := r.bindOwner(ctx, lc); err != nil {
		return reconcile.Result{}, err
	}
	if wait := untilReported(lc, next, r.now()); wait > 0 && failed == nil {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	unreadable, err := r.unreadable(ctx, logicalcluster.From(lc))
	if err != nil {
		return reconcile.Result{}, err
	}
	if unreadable != "" {
		result.RequeueAfter = min(cmp.Or(wait, recheck), recheck)
	}
	next = reportUnreadable(next, unreadable)
	if _, err = r.write(ctx, lc, label(r.defaults.Note(advance(next, r.externalURL)))); err != nil {
		return reconcile.Result{}, err
	}
	return result, failed
}

// bindOwner makes the owner of a new LogicalCluster its administrator before it becomes Ready.
func (r *logicalClusterReconciler) bindOwner(ctx context.Context, lc *corev1alpha1.LogicalCluster) error {
	binding, err := ownerBindingOf(lc)
	if err != nil || binding == nil {
		return err
	}
	cluster := logicalcluster.From(lc)
	if r.hasBinding(cluster, binding.Name) {
		return nil
	}
	if err := r.createBinding(ctx, cluster, binding); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("binding the owner to cluster-admin: %w", err)
	}
	return nil
}

// advance performs the next step of the status of a LogicalCluster with its initial objects. Metadata does not change.
func advance(lc *corev1alpha1.LogicalCluster, externalURL string) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	lc.Status.URL = strings.TrimSuffix(externalURL, "/") + request.ClusterPath(tenancy.PathOf(lc).String())

	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling:
		lc.Status.Initializers = slices.Clone(lc.Spec.Initializers)
		lc.Status.Terminators = slices.Clone(lc.Spec.Terminators)
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	case corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseInactive:
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
		if corev1alpha1.IsLogicalClusterInactive(lc.Annotations) {
			lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInactive
		}
		if conditions.IsFalse(lc, tenancyv1alpha1.WorkspaceInitialized) { // an administrator has set the phase
			conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceInitialized)
		}
	default:
		// Unavailable is set and reset by other components.
	}
	if lc.Status.Phase != corev1alpha1.LogicalClusterPhaseInitializing {
		return lc
	}
	if remaining := lc.Status.Initializers; len(remaining) > 0 {
		conditions.MarkFalse(lc, tenancyv1alpha1.WorkspaceInitialized, tenancyv1alpha1.WorkspaceInitializedInitializerExists,
			conditionsv1alpha1.ConditionSeverityInfo, "Initializers still exist: %v", remaining)
		return lc
	}
	// There is no initializer any more, or there never was one: this saves a second write.
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	conditions.MarkTrue(lc, tenancyv1alpha1.WorkspaceInitialized)
	return lc
}

// untilReported returns the delay before the state next, which waits for default bindings, is written to the status.
// Most logical clusters get their bindings within milliseconds. The delay then saves a write.
func untilReported(lc, next *corev1alpha1.LogicalCluster, now time.Time) time.Duration {
	isNew := lc.Status.Phase == "" || lc.Status.Phase == corev1alpha1.LogicalClusterPhaseScheduling
	alone := len(next.Status.Initializers) == 1 && next.Status.Initializers[0] == tenancyv1alpha1.WorkspaceAPIBindingsInitializer
	if !isNew || !alone || conditions.GetReason(next, tenancyv1alpha1.WorkspaceAPIBindingsInitialized) != tenancyv1alpha1.WorkspaceInitializedWaitingOnAPIBindings {
		return 0
	}
	return lc.CreationTimestamp.Add(time.Second).Sub(now)
}

// terminate sets the terminators and the phase of a LogicalCluster that is being deleted. It also removes the
// annotation of inactive logical clusters, because content can only be deleted through an active one.
func terminate(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	delete(lc.Annotations, corev1alpha1.LogicalClusterInactiveAnnotationKey)
	delete(lc.Annotations, corev1alpha1.LogicalClusterInactiveAnnotationKeyLegacy) //nolint:staticcheck // deprecated, but supported
	switch lc.Status.Phase {
	case corev1alpha1.LogicalClusterPhaseDeleting:
		return lc
	case corev1alpha1.LogicalClusterPhaseTerminating:
	default:
		// It was deleted before initialization, or initialized by a release that did not set terminators.
		lc.Status.Terminators = slices.Clone(lc.Spec.Terminators)
	}
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseDeleting
	if len(lc.Status.Terminators) > 0 {
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	}
	return lc
}

func label(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	tenancy.SetPhaseLabels(lc, lc.Status.Phase, lc.Status.Initializers, lc.Status.Terminators)
	return lc
}

// ownerBindingOf returns the binding for the owner annotation of a LogicalCluster that was never Ready, or nil.
func ownerBindingOf(lc *corev1alpha1.LogicalCluster) (*rbacv1.ClusterRoleBinding, error) {
	if isInitialized(lc) {
		return nil, nil //nolint:nilnil // already created
	}
	var parent logicalcluster.Name
	if lc.Spec.Owner != nil {
		parent = logicalcluster.Name(lc.Spec.Owner.Cluster)
	}
	name, err := tenancy.OwnerName(lc.Annotations, parent)
	if err != nil || name == "" {
		return nil, err
	}
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: tenancy.OwnerBinding},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: policy.ClusterAdmin},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, nil
}

// namespaceInterval is the time between two initialized logical clusters, e.g. after an upgrade, that get a missing
// namespace. With its initial objects it takes three writes, so the rate is 100 writes per second.
const namespaceInterval = 30 * time.Millisecond

// initialNamespaces creates the namespaces default, and kube-system if the type is root:universal or extends it.
type initialNamespaces struct {
	has    func(cluster logicalcluster.Name, name string) bool
	create func(ctx context.Context, cluster logicalcluster.Name, name string) error
	// isUniversal reports whether the type is root:universal or extends it. It returns an error if this is unknown.
	isUniversal func(lc *corev1alpha1.LogicalCluster) (bool, error)
	turns       reconcile.Turns[logicalcluster.Name]
}

func newInitialNamespaces(config Config) *initialNamespaces {
	lister := config.Namespaces.Lister()
	return &initialNamespaces{
		has: func(cluster logicalcluster.Name, name string) bool {
			_, err := lister.Get(client.Key{Cluster: cluster, Name: name})
			return err == nil
		},
		create: func(ctx context.Context, cluster logicalcluster.Name, name string) error {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			_, err := kinds.Namespaces.In(config.Local.Cluster(cluster.Path())).Create(ctx, namespace, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("creating the namespace %s: %w", name, err)
			}
			return nil
		},
		// The types are those of the default bindings, whose changes requeue the logical clusters.
		isUniversal: func(lc *corev1alpha1.LogicalCluster) (bool, error) {
			types, err := config.Defaults.Types.Of(lc)
			if err != nil {
				return false, config.Defaults.TypesComplete() // nil if the type does not exist
			}
			return types.IsUniversal(), nil
		},
		turns: reconcile.Turns[logicalcluster.Name]{Interval: namespaceInterval},
	}
}

// make creates the missing namespaces concurrently, or returns the delay after which it must be called again.
func (n *initialNamespaces) make(ctx context.Context, lc *corev1alpha1.LogicalCluster, now time.Time) (again time.Duration, err error) {
	cluster := logicalcluster.From(lc)
	missing, err := n.missing(lc)
	if len(missing) == 0 {
		n.turns.Forget(cluster)
		return 0, err
	}
	if wait := untilObserved(lc, now); wait > 0 {
		return wait, err
	}
	if isInitialized(lc) {
		if wait := n.turns.Wait(cluster, now); wait > 0 {
			return wait, err
		}
	}
	var all sync.WaitGroup
	errs := make([]error, len(missing)+1)
	errs[len(missing)] = err
	for i, name := range missing {
		all.Go(func() { errs[i] = n.create(ctx, cluster, name) })
	}
	all.Wait()
	return 0, errors.Join(errs...)
}

// missing returns the names of initial namespaces that the informer does not contain.
func (n *initialNamespaces) missing(lc *corev1alpha1.LogicalCluster) (missing []string, err error) {
	cluster := logicalcluster.From(lc)
	if !n.has(cluster, metav1.NamespaceDefault) {
		missing = append(missing, metav1.NamespaceDefault)
	}
	if n.has(cluster, metav1.NamespaceSystem) {
		return missing, nil
	}
	universal, err := n.isUniversal(lc)
	if universal {
		missing = append(missing, metav1.NamespaceSystem)
	}
	return missing, err
}

// isInitialized reports whether a LogicalCluster was initialized. After that, missing namespaces do not block it.
func isInitialized(lc *corev1alpha1.LogicalCluster) bool {
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing:
		return false
	default:
		return true
	}
}

// untilObserved returns the time until a missing namespace is created, because the informer may be behind.
func untilObserved(lc *corev1alpha1.LogicalCluster, now time.Time) time.Duration {
	initialized := conditions.Get(lc, tenancyv1alpha1.WorkspaceInitialized)
	if initialized == nil {
		return 0
	}
	return initialized.LastTransitionTime.Add(observeTimeout).Sub(now)
}

// Unserved deletes some stored objects without a served API, regardless of finalizers, and returns their number.
type Unserved func(ctx context.Context, cluster logicalcluster.Name) (int64, error)

func keyOf(cluster logicalcluster.Name) []client.Key {
	return []client.Key{{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}}
}

// objectsReadable is the condition that is False while objects cannot be decoded.
const objectsReadable conditionsv1alpha1.ConditionType = "ObjectsReadable"

const (
	unreadableObjects = "UnreadableObjects"
	// recheck is the interval for checking whether such objects were deleted or fixed.
	recheck = time.Minute
)

// Unreadable gives access to the objects that this process could not decode.
type Unreadable struct {
	// Describe describes those of a logical cluster; empty if there are none.
	Describe func(ctx context.Context, cluster logicalcluster.Name) (string, error)
	// Follow calls changed for each logical cluster with a changed description, until stop is called.
	Follow func(changed func(logicalcluster.Name)) (stop func())
}

func (u Unreadable) source(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return u.Follow(func(cluster logicalcluster.Name) { queue.Add(keyOf(cluster)[0]) }), nil
}

// reportUnreadable sets the condition for unreadable objects. It is not added if there never were any.
func reportUnreadable(lc *corev1alpha1.LogicalCluster, description string) *corev1alpha1.LogicalCluster {
	if description == "" && !conditions.IsFalse(lc, objectsReadable) {
		return lc
	}
	lc = lc.DeepCopy()
	if description == "" {
		conditions.MarkTrue(lc, objectsReadable)
		return lc
	}
	conditions.MarkFalse(lc, objectsReadable, unreadableObjects, conditionsv1alpha1.ConditionSeverityWarning, "%s", description)
	return lc
}

// observeTimeout is the maximum delay between a write and its arrival in an informer.
const observeTimeout = 5 * time.Second

// Config configures the controllers. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters, and Objects is its storage.
	Local   *client.Factory
	Objects reconcile.Objects
	// ExternalURL is the prefix of the URLs of logical clusters.
	ExternalURL         string
	LogicalClusters     *client.Informer[*corev1alpha1.LogicalCluster]
	Namespaces          *client.Informer[*corev1.Namespace]
	Workspaces          *client.Informer[*tenancyv1alpha1.Workspace]
	Bindings            *client.Informer[*apisv1alpha2.APIBinding]
	ClusterRoleBindings *client.Informer[*rbacv1.ClusterRoleBinding]
	// Stored selects the content to delete, and Unserved deletes objects without a served API.
	Stored   purge.Stored
	Unserved Unserved
	// Unreadable reports objects that cannot be decoded.
	Unreadable Unreadable
	// Defaults configures the default bindings of types.
	Defaults defaults.Config
}

func (c Config) commit() func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
		scope := c.Local.Cluster(logicalcluster.From(old).Path())
		return reconcile.CommitStored(ctx, c.Objects, kinds.LogicalClusters.GroupResource(), kinds.LogicalClusters.In(scope), old, updated)
	}
}

type writer struct {
	commit func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error)
	latest reconcile.Latest[*corev1alpha1.LogicalCluster]
}

func (w *writer) write(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return w.latest.Commit(ctx, w.commit, old, updated)
}
