// Package logicalcluster manages the lifecycle of the logical clusters of a shard. Each of them is described by its LogicalCluster
// object.
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
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/logicalcluster/defaults"
	"github.com/shardplane/shardplane/pkg/reconcile"
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
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	lc, exists := r.latest.Of(key, cached, err == nil)
	if key.Name != corev1alpha1.LogicalClusterName {
		return reconcile.Result{}, nil
	}
	if !exists || lc.DeletionTimestamp != nil {
		r.defaults.Forget(key.Cluster)
		r.namespaces.turns.Forget(key.Cluster)
		return reconcile.Result{}, nil // handled by the deletion controller
	}
	return r.bringUp(ctx, lc)
}

// bringUp performs the next step for a LogicalCluster that is not being deleted.
func (r *logicalClusterReconciler) bringUp(ctx context.Context, lc *corev1alpha1.LogicalCluster) (reconcile.Result, error) {
	// Bindings are created first, because they are processed concurrently with the following steps.
	next, again, failed := r.defaults.Make(ctx, advance(lc, r.externalURL))
	wait, err := r.namespaces.make(ctx, lc, r.now())
	result := reconcile.Result{Backoff: again, RequeueAfter: wait}
	if err != nil && !isUp(lc) {
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
