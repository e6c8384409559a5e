package policy_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/authz/policy"
)

// TestDocumentedBindings checks the default bindings that Kubernetes documents. Anonymous users cannot use
// theirs, because authentication rejects them except for health probes.
func TestDocumentedBindings(t *testing.T) {
	bound := map[string][]string{}
	for _, binding := range policy.System().ClusterRoleBindings {
		for _, subject := range binding.Subjects {
			bound[binding.RoleRef.Name] = append(bound[binding.RoleRef.Name], subject.Name)
		}
	}
	for role, group := range map[string]string{
		"cluster-admin": "system:masters", "system:basic-user": "system:authenticated",
		"system:discovery": "system:authenticated", "system:public-info-viewer": "system:authenticated",
	} {
		require.Contains(t, bound[role], group, role)
	}
	for role, groups := range bound {
		require.Equal(t, role == "system:public-info-viewer", slices.Contains(groups, "system:unauthenticated"), role)
	}
	for _, role := range []string{"admin", "edit", "view"} {
		require.Empty(t, bound[role], "user-facing roles must not be bound by default")
	}
}

// TestDocumentedRoles checks the documentation of Kubernetes about user-facing roles.
func TestDocumentedRoles(t *testing.T) {
	for _, tc := range []struct {
		verb, group, resource string
		in                    []string // of admin, edit and view
	}{
		// "It does not allow viewing Secrets", nor "roles or role bindings".
		{"get", "", "configmaps", []string{"admin", "edit", "view"}},
		{"get", "", "secrets", []string{"admin", "edit"}},
		{"get", "rbac.authorization.k8s.io", "roles", []string{"admin"}},
		{"get", "rbac.authorization.k8s.io", "rolebindings", []string{"admin"}},
		// edit "does not allow viewing or modifying roles or role bindings", but
		// "accessing Secrets and running Pods as any ServiceAccount".
		{"update", "", "configmaps", []string{"admin", "edit"}},
		{"create", "", "secrets", []string{"admin", "edit"}},
		{"impersonate", "", "serviceaccounts", []string{"admin", "edit"}},
		{"create", "", "serviceaccounts/token", []string{"admin", "edit"}},
		{"create", "rbac.authorization.k8s.io", "rolebindings", []string{"admin"}},
		{"create", "authorization.k8s.io", "localsubjectaccessreviews", []string{"admin"}},
		// admin "does not allow write access to resource quota or to the namespace
		// itself".
		{"get", "", "resourcequotas", []string{"admin", "edit", "view"}},
		{"update", "", "resourcequotas", nil},
		{"delete", "", "namespaces", nil},
		{"update", "", "namespaces", nil},
		{"get", "rbac.authorization.k8s.io", "clusterroles", nil},
		{"escalate", "rbac.authorization.k8s.io", "roles", nil},
		{"bind", "rbac.authorization.k8s.io", "roles", nil},
		{"impersonate", "", "users", nil},
	} {
		for _, role := range []string{"admin", "edit", "view"} {
			require.Equal(t, slices.Contains(tc.in, role), has(t, role, tc.verb, tc.group, tc.resource), "%s may %s %s", role, tc.verb, tc.resource)
		}
		require.True(t, has(t, "cluster-admin", tc.verb, tc.group, tc.resource))
	}
}

// has reports whether a role, with aggregated roles, has a rule.
func has(t *testing.T, name, verb, group, resource string) bool {
	t.Helper()
	contains := func(list []string, value string) bool {
		return slices.Contains(list, value) || slices.Contains(list, "*")
	}
	return slices.ContainsFunc(rulesOf(t, name), func(rule rbacv1.PolicyRule) bool {
		return contains(rule.Verbs, verb) && contains(rule.APIGroups, group) && contains(rule.Resources, resource)
	})
}

// rulesOf returns the rules of a role, with those of aggregated roles.
func rulesOf(t *testing.T, name string) []rbacv1.PolicyRule {
	t.Helper()
	roles := policy.System().ClusterRoles
	at := slices.IndexFunc(roles, func(r *rbacv1.ClusterRole) bool { return r.Name == name })
	require.GreaterOrEqual(t, at, 0, name)
	all := roles[at].Rules
	if roles[at].AggregationRule == nil {
		return all
	}
	for i := range roles[at].AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&roles[at].AggregationRule.ClusterRoleSelectors[i])
		require.NoError(t, err)
		for _, other := range roles {
			if selector.Matches(labels.Set(other.Labels)) {
				all = append(all, rulesOf(t, other.Name)...)
			}
		}
	}
	return all
}
