package aggregation

import (
	"context"
	"fmt"

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

const (
	workers = 4
	// maxBytes is how large an aggregated role may be: etcd takes requests of 1.5 MiB.
	maxBytes = 1 << 20
)

// Config is what the controller needs. The informer is that of all logical
// clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local        *client.Factory
	ClusterRoles *client.Informer[*rbacv1.ClusterRole]
}

// New returns the controller.
func New(config Config) *reconcile.Controller[client.Key] {
	roles := config.ClusterRoles.Lister()
	r := &reconciler{
		get: roles.Get,
		all: func(cluster logicalcluster.Name) []*rbacv1.ClusterRole { return roles.Cluster(cluster).List(nil) },
		commit: func(ctx context.Context, old, updated *rbacv1.ClusterRole) error {
			_, err := reconcile.Commit(ctx, kinds.ClusterRoles.In(config.Local.Cluster(logicalcluster.From(old).Path())), old, updated)
			return err
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      Name,
		Reconcile: r.reconcile,
		Workers:   workers,
		Sources:   []reconcile.Source[client.Key]{reconcile.FromInformer(config.ClusterRoles, r.affected)},
	})
}

type reconciler struct {
	get    func(key client.Key) (*rbacv1.ClusterRole, error)
	all    func(cluster logicalcluster.Name) []*rbacv1.ClusterRole
	commit func(ctx context.Context, old, updated *rbacv1.ClusterRole) error
}

// affected returns the aggregated roles whose rules a change of role changes.
func (r *reconciler) affected(role *rbacv1.ClusterRole) []client.Key {
	var keys []client.Key
	if role.AggregationRule != nil {
		keys = append(keys, client.KeyOf(role))
	}
	if len(role.Labels) == 0 {
		return keys // nothing selects it
	}
	for _, other := range r.all(logicalcluster.From(role)) {
		if other.Name != role.Name && selects(other, role) {
			keys = append(keys, client.KeyOf(other))
		}
	}
	return keys
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	role, err := r.get(key)
	if apierrors.IsNotFound(err) || err == nil && (role.AggregationRule == nil || role.DeletionTimestamp != nil) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	aggregated := aggregate(role, r.all(key.Cluster))
	if n := aggregated.Size(); n > maxBytes {
		// Trying again helps only when something changes, which calls this again.
		klog.FromContext(ctx).Info("The rules that a cluster role aggregates are too large to be stored, it keeps those it has", "clusterRole", key, "bytes", n, "most", maxBytes)
		return reconcile.Result{}, nil
	}
	if err := r.commit(ctx, role, aggregated); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("writing the rules of cluster role %s: %w", key, err)
	}
	return reconcile.Result{}, nil
}
