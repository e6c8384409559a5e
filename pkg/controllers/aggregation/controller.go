// Package aggregation updates the rules of aggregated cluster roles with the rules of all matching roles in the logical
// cluster.
//
//	ClusterRole a, labelled ──┐
//	ClusterRole b, labelled ──┴─► ClusterRole with an aggregationRule: rules of a and b
package aggregation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
)

// Name is the name of the controller.
const Name = "clusterrole-aggregation"

// NewClusterRoleAggregator returns the controller. The informer contains the roles of all logical clusters of the shard.
func NewClusterRoleAggregator(local *client.Factory, clusterRoles *client.Informer[*rbacv1.ClusterRole]) *reconcile.Controller[client.Key] {
	roles := clusterRoles.Lister()
	r := &aggregationReconciler{
		get:    roles.Get,
		all:    func(cluster logicalcluster.Name) []*rbacv1.ClusterRole { return roles.Cluster(cluster).List(nil) },
		commit: reconcile.Committer(local, kinds.ClusterRoles),
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{r.setQueue, reconcile.FromInformer(clusterRoles, keysOf)},
	})
}

type aggregationReconciler struct {
	get    func(key client.Key) (*rbacv1.ClusterRole, error)
	all    func(cluster logicalcluster.Name) []*rbacv1.ClusterRole
	commit func(ctx context.Context, old, updated *rbacv1.ClusterRole) (*rbacv1.ClusterRole, error)
	queue  atomic.Pointer[reconcile.Queue[client.Key]]
}

// setQueue gives Reconcile access to the queue.
func (r *aggregationReconciler) setQueue(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	r.queue.Store(&queue)
	return func() {}, nil
}

// keysOf returns the key of an aggregated role. For a role with labels, it also returns a key without a name,
// which means all aggregated roles of the logical cluster. Workers expand this key, because the goroutine of the
// informer serves all tenants.
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
	if _, err := r.commit(ctx, role, aggregated); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("writing the rules of cluster role %s: %w", key, err)
	}
	return reconcile.Result{}, nil
}

// maxBytes is the maximum size of an aggregated role, and of its rules as JSON, which cache servers store. The request
// limit of etcd is 1.5 MiB.
//
//reference:limit object | aggregated ClusterRole: size of the rules | the role keeps its rules
const maxBytes = 1 << 20

var errTooLarge = errors.New("the rules are too large")

// aggregate returns role with the distinct rules of the roles that it selects, in the order of their names. It stops when
// ctx is done, because a tenant can have many roles and selectors.
func aggregate(ctx context.Context, role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
	selected, err := selectedBy(ctx, role, all)
	if err != nil {
		return nil, err
	}
	rules := []rbacv1.PolicyRule{}
	known := map[string]bool{}
	bytes := 0
	for _, other := range selected {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("collecting rules: %w", err)
		}
		for _, rule := range other.Rules {
			text, err := json.Marshal(rule)
			if err != nil {
				return nil, fmt.Errorf("encoding a rule: %w", err)
			}
			if known[string(text)] {
				continue
			}
			known[string(text)] = true
			rules = append(rules, *rule.DeepCopy())
			if bytes += len(text); bytes > maxBytes {
				return nil, errTooLarge
			}
		}
	}
	if equality.Semantic.DeepEqual(role.Rules, rules) {
		return role, nil
	}
	updated := role.DeepCopy()
	updated.Rules = rules
	if updated.Size() > maxBytes {
		return nil, errTooLarge
	}
	return updated, nil
}

// selectedBy returns the other roles that role aggregates, in the order of their names.
func selectedBy(ctx context.Context, role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]*rbacv1.ClusterRole, error) {
	var selectors []labels.Selector
	for i := range role.AggregationRule.ClusterRoleSelectors {
		if selector, err := request.LabelSelector(&role.AggregationRule.ClusterRoleSelectors[i]); err == nil {
			selectors = append(selectors, selector)
		}
	}
	var selected []*rbacv1.ClusterRole
	for _, other := range all {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("matching selectors: %w", err)
		}
		matches := func(selector labels.Selector) bool { return selector.Matches(labels.Set(other.Labels)) }
		if other.Name != role.Name && slices.ContainsFunc(selectors, matches) {
			selected = append(selected, other)
		}
	}
	slices.SortFunc(selected, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	return selected, nil
}
