package policy_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/shardplane/shardplane/pkg/authz/policy"
)

func TestPolicy(t *testing.T) {
	system, root := policy.System(), policy.Root("system:authenticated")
	known := map[string]bool{}
	for _, role := range append(slices.Clone(system.ClusterRoles), root.ClusterRoles...) {
		require.False(t, known[role.Name], "duplicate role %s", role.Name)
		known[role.Name] = true
		require.NotEqual(t, len(role.Rules) > 0, (role.AggregationRule != nil), "%s must have either rules or an aggregation rule", role.Name)
		require.Equal(t, "true", role.Annotations[rbacv1.AutoUpdateAnnotationKey])
	}
	names := map[string]bool{}
	for _, binding := range append(slices.Clone(system.ClusterRoleBindings), root.ClusterRoleBindings...) {
		require.False(t, names[binding.Name], "duplicate binding %s", binding.Name)
		names[binding.Name] = true
		require.True(t, known[binding.RoleRef.Name], "%s binds %s, which does not exist", binding.Name, binding.RoleRef.Name)
		require.NotEmpty(t, binding.Subjects)
		for _, subject := range binding.Subjects {
			require.Equal(t, "Group", subject.Kind, "default bindings must not contain users")
		}
	}
	require.NotSame(t, policy.System().ClusterRoles[0], system.ClusterRoles[0])
}

// TestUsersWithoutRoles checks that users without roles can only review themselves and use discovery.
func TestUsersWithoutRoles(t *testing.T) {
	rules := map[string][]rbacv1.PolicyRule{}
	system := policy.System()
	for _, role := range system.ClusterRoles {
		rules[role.Name] = role.Rules
	}
	for _, binding := range system.ClusterRoleBindings {
		allUsers := slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool {
			return s.Name == "system:authenticated" || s.Name == "system:unauthenticated"
		})
		if !allUsers {
			continue
		}
		for _, rule := range rules[binding.RoleRef.Name] {
			for _, verb := range rule.Verbs {
				require.Contains(t, []string{"get", "create"}, verb, binding.Name)
			}
			for _, resource := range rule.Resources {
				require.Contains(t, []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}, resource, binding.Name)
			}
			require.NotContains(t, rule.NonResourceURLs, "/", "%s must not grant access", binding.Name)
			require.NotContains(t, rule.NonResourceURLs, "*", binding.Name)
		}
	}
}

// TestUserFacing checks that admin includes edit, and edit includes view, and that none of them can write
// cluster-wide roles.
func TestUserFacing(t *testing.T) {
	admin, edit, view := rulesOf(t, "admin"), rulesOf(t, "edit"), rulesOf(t, "view")
	require.Subset(t, admin, edit)
	require.Subset(t, edit, view)
	require.Greater(t, len(admin), len(edit))
	require.Greater(t, len(edit), len(view))
	for _, rule := range admin {
		require.Empty(t, rule.NonResourceURLs)
		require.NotContains(t, rule.Resources, "clusterroles")
		require.NotContains(t, rule.Resources, "clusterrolebindings")
		require.NotContains(t, rule.Verbs, "*")
	}
	for _, rule := range view {
		require.Equal(t, []string{"get", "list", "watch"}, rule.Verbs)
		require.NotContains(t, rule.Resources, "secrets")
	}
}
