package aggregation

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

func clusterRole(name, label string, resources ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: "c"}}}
	if label != "" {
		r.Labels = map[string]string{label: "true"}
	}
	for _, resource := range resources {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}})
	}
	return r
}

func aggregated(name string, selectors ...string) *rbacv1.ClusterRole {
	r := clusterRole(name, "")
	r.AggregationRule = &rbacv1.AggregationRule{}
	for _, label := range selectors {
		r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors,
			metav1.LabelSelector{MatchLabels: map[string]string{label: "true"}})
	}
	return r
}

func resources(r *rbacv1.ClusterRole) []string {
	all := []string{}
	for _, rule := range r.Rules {
		all = append(all, rule.Resources...)
	}
	return all
}

func TestAggregate(t *testing.T) {
	role := aggregated("all", "x", "y")
	others := []*rbacv1.ClusterRole{
		clusterRole("c", "y", "secrets", "pods"),
		role,
		clusterRole("a", "x", "pods"),
		clusterRole("b", "z", "nodes"),
	}
	from := func(role *rbacv1.ClusterRole, others []*rbacv1.ClusterRole) *rbacv1.ClusterRole {
		got, err := aggregate(t.Context(), role, others)
		require.NoError(t, err)
		return got
	}
	got := from(role, others)
	require.Equal(t, []string{"pods", "secrets"}, resources(got), "rules of both selectors must be merged in the order of names, without duplicates")
	require.Same(t, got, from(got, others), "unchanged rules must not be written")
	require.Empty(t, from(got, nil).Rules, "rules that no selected role grants must be removed")
	require.NotNil(t, from(got, nil).Rules, "null would be omitted from the request")
}

// TestAggregateEnds: aggregation stops when the context is done.
func TestAggregateEnds(t *testing.T) {
	role := aggregated("all", "x")
	for _, label := range []string{"x", "y"} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := aggregate(ctx, role, []*rbacv1.ClusterRole{clusterRole("a", label, "pods")})
		require.ErrorIs(t, err, context.Canceled)
	}
}

type noted struct {
	reconcile.Queue[client.Key]
	keys []client.Key
}

func (n *noted) Add(key client.Key) { n.keys = append(n.keys, key) }

func TestReconcile(t *testing.T) {
	all := []*rbacv1.ClusterRole{aggregated("view", "view"), clusterRole("a", "view", "pods")}
	written := map[string]*rbacv1.ClusterRole{}
	r := &aggregationReconciler{
		get: func(key client.Key) (*rbacv1.ClusterRole, error) {
			for _, role := range all {
				if role.Name == key.Name {
					return role, nil
				}
			}
			return nil, apierrors.NewNotFound(rbacv1.Resource("clusterroles"), key.Name)
		},
		all: func(logicalcluster.Name) []*rbacv1.ClusterRole { return all },
		commit: func(_ context.Context, _, updated *rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
			written[updated.Name] = updated
			return updated, nil
		},
	}
	view := client.Key{Cluster: "c", Name: "view"}
	of := client.Key{Cluster: "c"}
	require.Equal(t, []client.Key{of}, keysOf(all[1]), "a worker determines the roles that select it")
	require.Equal(t, []client.Key{view}, keysOf(all[0]))
	require.Empty(t, keysOf(clusterRole("b", "")))
	var queue noted
	_, err := r.setQueue(t.Context(), &queue)
	require.NoError(t, err)
	_, err = r.reconcile(t.Context(), of)
	require.NoError(t, err)
	require.Equal(t, []client.Key{view}, queue.keys)
	for _, name := range []string{"view", "a", "deleted"} {
		_, err := r.reconcile(t.Context(), client.Key{Cluster: "c", Name: name})
		require.NoError(t, err)
	}
	require.Len(t, written, 1)
	require.Equal(t, []string{"pods"}, resources(written["view"]))
}

// TestTooLarge: rules that are too large to be stored are not written, and this is not retried.
func TestTooLarge(t *testing.T) {
	for name, text := range map[string]string{"here": strings.Repeat("x", 1000), "as JSON": strings.Repeat("\x01", 200)} {
		t.Run(name, func(t *testing.T) {
			long := clusterRole("a", "view")
			for n := range 1100 {
				long.Rules = append(long.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{fmt.Sprint(n) + text}})
			}
			view := aggregated("view", "view")
			r := &aggregationReconciler{
				get: func(client.Key) (*rbacv1.ClusterRole, error) { return view, nil },
				all: func(logicalcluster.Name) []*rbacv1.ClusterRole { return []*rbacv1.ClusterRole{view, long} },
				commit: func(_ context.Context, old, _ *rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
					t.Error("written")
					return old, nil
				},
			}
			result, err := r.reconcile(t.Context(), client.Key{Cluster: "c", Name: "view"})
			require.NoError(t, err)
			require.Zero(t, result)
		})
	}
}
