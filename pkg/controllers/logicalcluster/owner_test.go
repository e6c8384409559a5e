package logicalcluster

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func owned(phase corev1alpha1.LogicalClusterPhaseType, owner string) *corev1alpha1.LogicalCluster {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster", Annotations: map[string]string{logicalcluster.AnnotationKey: "new"}}}
	lc.Spec.Owner = &corev1alpha1.LogicalClusterOwner{Cluster: "parent"}
	lc.Status.Phase = phase
	if owner != "" {
		lc.Annotations["experimental.tenancy.kcp.io/owner"] = owner
	}
	return lc
}

func TestOwnerBindingOf(t *testing.T) {
	for owner, want := range map[string]string{
		`{"username":"alice"}`:                        "alice",
		`{"username":"system:serviceaccount:ns:bot"}`: "system:kcp:serviceaccount:parent:ns:bot",
		`{"username":"system:serviceaccount:ns:bot","extra":{"authentication.kcp.io/cluster-name":["elsewhere"]}}`: "system:kcp:serviceaccount:elsewhere:ns:bot",
		`{"username":"system:serviceaccount:ns:bot","extra":{"authentication.kcp.io/scopes":["cluster:parent"]}}`:  "system:kcp:serviceaccount:parent:ns:bot",
	} {
		binding, err := ownerBindingOf(owned(corev1alpha1.LogicalClusterPhaseInitializing, owner))
		require.NoError(t, err)
		require.Equal(t, "workspace-admin", binding.Name)
		require.Equal(t, "cluster-admin", binding.RoleRef.Name)
		require.Equal(t, []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: want}}, binding.Subjects)
	}
	for _, lc := range []*corev1alpha1.LogicalCluster{
		owned("", `{"username":"system:serviceaccount:ns:bot","extra":{"authentication.kcp.io/cluster-name":["elsewhere","parent"]}}`),
		owned("", `{"username":"system:serviceaccount:ns:bot","extra":{"authentication.kcp.io/cluster-name":["root:elsewhere"]}}`),
		owned("", `{"username":"system:serviceaccount:ns:bot","extra":{"authentication.kcp.io/scopes":["cluster:elsewhere"]}}`),
		owned("", ""), owned("", `{"groups":["team"]}`), owned(corev1alpha1.LogicalClusterPhaseReady, `{"username":"alice"}`),
	} {
		binding, err := ownerBindingOf(lc)
		require.NoError(t, err)
		require.Nil(t, binding)
	}
	_, err := ownerBindingOf(owned("", "alice"))
	require.ErrorContains(t, err, "is not a user")
}

func TestBindOwner(t *testing.T) {
	created := 0
	exists := false
	r := &logicalClusterReconciler{
		hasBinding: func(cluster logicalcluster.Name, name string) bool {
			require.Equal(t, logicalcluster.Name("new"), cluster)
			return exists
		},
		createBinding: func(context.Context, logicalcluster.Name, *rbacv1.ClusterRoleBinding) error {
			created++
			return nil
		},
	}
	lc := owned("", `{"username":"alice"}`)
	require.NoError(t, r.bindOwner(t.Context(), lc))
	require.Equal(t, 1, created)
	exists = true
	require.NoError(t, r.bindOwner(t.Context(), lc))
	require.NoError(t, r.bindOwner(t.Context(), owned("", "")))
	require.Equal(t, 1, created)
}
