package aggregation

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Name is the name of the controller.
const Name = "clusterrole-aggregation"

const workers = 4

// Config configures the controller. The informer contains the objects of all logical clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local        *client.Factory
	ClusterRoles *client.Informer[*rbacv1.ClusterRole]
}

// NewClusterRoleAggregator returns the controller.
func NewClusterRoleAggregator(config Config) *reconcile.Controller[client.Key] {
	roles := config.ClusterRoles.Lister()
	r := &aggregationReconciler{
		get: roles.Get,
		all: func(cluster logicalcluster.Name) []*rbacv1.ClusterRole { return roles.Cluster(cluster).List(nil) },
		commit: func(ctx context.Context, old, updated *rbacv1.ClusterRole) error {
			_, err := reconcile.Commit(ctx, kinds.ClusterRoles.In(config.Local.Cluster(logicalcluster.From(old).Path())), old, updated)
			return err
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile, Workers: workers,
		Sources: []reconcile.Source[client.Key]{r.setQueue, reconcile.FromInformer(config.ClusterRoles, keysOf)},
	})
}

type aggregationReconciler struct {
	get    func(key client.Key) (*rbacv1.ClusterRole, error)
	all    func(cluster logicalcluster.Name) []*rbacv1.ClusterRole
	commit func(ctx context.Context, old, updated *rbacv1.ClusterRole) error
	queue  atomic.Pointer[reconcile.Queue[client.Key]]
}

// setQueue gives Reconcile access to the queue.
func (r *aggregationReconciler) setQueue(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	r.queue.Store(&queue)
	return func() {}, nil
}

// keysOf returns the key of a changed role if it is aggregated, and a key without a name, which stands for all aggregated
// roles of its logical cluster. Workers find the roles that select the changed role, because the informer's goroutine
// serves all tenants.
func keysOf(role *rbacv1.ClusterRole) []client.Key {
	var keys []client.Key
	if role.AggregationRule != nil {
		keys = append(keys, client.KeyOf(role))
	}
	if len(role.Labels) > 0 { // otherwise no selector matches it
		keys = append(keys, client.Key{Cluster: logicalcluster.From(role)})
	}
	return keys
}

func (r *aggregationReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	if key.Name == "" {
		for _, role := range r.all(key.Cluster) {
			if queue := *r.queue.Load(); role.AggregationRule != nil {
				queue.Add(client.KeyOf(role))
			}
		}
		return reconcile.Result{}, nil
	}
	role, err := r.get(key)
	if err != nil || role.AggregationRule == nil || role.DeletionTimestamp != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	aggregated, err := aggregate(ctx, role, r.all(key.Cluster))
	switch {
	case errors.Is(err, errTooLarge):
		// A retry is useless until something changes, which requeues the role.
		klog.FromContext(ctx).Info("Aggregated rules of a cluster role are too large, keeping the previous rules", "clusterRole", key, "limit", maxBytes)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("aggregating cluster role %s: %w", key, err)
	}
	if err := r.commit(ctx, role, aggregated); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("writing the rules of cluster role %s: %w", key, err)
	}
	return reconcile.Result{}, nil
}
