package bootstrap

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/shardplane/shardplane/pkg/authz/policy"
)

func TestPolicyOf(t *testing.T) {
	require.NotEmpty(t, policyOf("system:admin", nil).ClusterRoles)
	require.NotEmpty(t, policyOf("root", nil).ClusterRoleBindings)
	require.Empty(t, policyOf("other", nil))
}

func TestMergeRole(t *testing.T) {
	for _, want := range policy.System().ClusterRoles {
		merged, err := mergeRole(want, want)
		require.NoError(t, err)
		require.Same(t, want, merged, "complete roles must not be written")
	}
	want := policy.System().ClusterRoles[1]
	require.Equal(t, "system:discovery", want.Name)
	more := rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/more"}}
	existing := want.DeepCopy()
	existing.Rules = []rbacv1.PolicyRule{more}
	existing.Labels = map[string]string{"mine": "x"}
	merged, err := mergeRole(existing, want)
	require.NoError(t, err)
	require.Contains(t, merged.Rules, more, "added rules must be retained")
	require.Greater(t, len(merged.Rules), 1)
	require.Equal(t, "x", merged.Labels["mine"])
	require.Equal(t, "rbac-defaults", merged.Labels["kubernetes.io/bootstrapping"])
	require.Len(t, existing.Rules, 1)

	existing.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
	merged, err = mergeRole(existing, want)
	require.NoError(t, err)
	require.Same(t, existing, merged)

	aggregated := policy.System().ClusterRoles[7]
	require.NotNil(t, aggregated.AggregationRule)
	existing = aggregated.DeepCopy()
	existing.Rules = []rbacv1.PolicyRule{more} // by the controller of aggregated roles
	merged, err = mergeRole(existing, aggregated)
	require.NoError(t, err)
	require.Same(t, existing, merged)
}

func TestMergeBinding(t *testing.T) {
	for _, want := range policy.System().ClusterRoleBindings {
		merged, err := mergeBinding(want, want)
		require.NoError(t, err)
		require.Same(t, want, merged)
	}
	want := policy.System().ClusterRoleBindings[0]
	existing := want.DeepCopy()
	mine := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "ops"}
	existing.Subjects = []rbacv1.Subject{mine}
	merged, err := mergeBinding(existing, want)
	require.NoError(t, err)
	require.Equal(t, append([]rbacv1.Subject{mine}, want.Subjects...), merged.Subjects)

	for _, creators := range [][]string{{"one"}, {"two", "three"}, nil} {
		want := policyOf("root", creators).ClusterRoleBindings
		homes := want[slices.IndexFunc(want, func(b *rbacv1.ClusterRoleBinding) bool { return b.Name == policy.HomeCreate })]
		existing := homes.DeepCopy()
		existing.Subjects = []rbacv1.Subject{mine}
		merged, err := mergeBinding(existing, homes)
		require.NoError(t, err)
		require.Equal(t, homes.Subjects, merged.Subjects, "the subjects must be those of the flag")
	}

	existing.RoleRef.Name = "other"
	_, err = mergeBinding(existing, want)
	require.ErrorContains(t, err, "delete it")
}
