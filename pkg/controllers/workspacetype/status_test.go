package workspacetype

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/documented"
)

func TestStatus(t *testing.T) {
	of := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "apps", Annotations: map[string]string{logicalcluster.AnnotationKey: "home"}}}
	shard := func(name, url string) *corev1alpha1.Shard {
		return &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1alpha1.ShardSpec{VirtualWorkspaceURL: url}}
	}
	ends := func(base string) []tenancyv1alpha1.VirtualWorkspace {
		return []tenancyv1alpha1.VirtualWorkspace{
			{URL: base + "/services/initializingworkspaces/home:apps", Type: tenancyv1alpha1.VirtualWorkspaceTypeInitializing},
			{URL: base + "/services/terminatingworkspaces/home:apps", Type: tenancyv1alpha1.VirtualWorkspaceTypeTerminating},
		}
	}
	updated := advance(of, []*corev1alpha1.Shard{shard("b", "https://b:6443/x/"), shard("a", "https://a"), shard("new", ""), shard("same", "https://a")})
	require.Equal(t, append(ends("https://a"), ends("https://b:6443/x")...), updated.Status.VirtualWorkspaces)
	require.True(t, conditions.IsTrue(updated, tenancyv1alpha1.WorkspaceTypeVirtualWorkspaceURLsReady))
	require.True(t, conditions.IsTrue(updated, conditionsv1alpha1.ReadyCondition))
	require.Equal(t, updated, advance(updated, []*corev1alpha1.Shard{shard("a", "https://a"), shard("b", "https://b:6443/x")}), "an unchanged status must not be written")
	require.Empty(t, of.Status.Conditions)

	remaining := advance(updated, []*corev1alpha1.Shard{shard("a", "https://a"), shard("wrong", "nothing")})
	require.Equal(t, ends("https://a"), remaining.Status.VirtualWorkspaces)
	require.Equal(t, tenancyv1alpha1.ErrorGeneratingURLsReason, conditions.GetReason(remaining, tenancyv1alpha1.WorkspaceTypeVirtualWorkspaceURLsReady))
	require.Contains(t, conditions.GetMessage(remaining, tenancyv1alpha1.WorkspaceTypeVirtualWorkspaceURLsReady), "wrong")
	require.True(t, conditions.IsFalse(remaining, conditionsv1alpha1.ReadyCondition))
}

func TestDocumented(t *testing.T) {
	wrong := &corev1alpha1.Shard{Spec: corev1alpha1.ShardSpec{VirtualWorkspaceURL: "nothing"}}
	reported := documented.Reported(advance(&tenancyv1alpha1.WorkspaceType{}, []*corev1alpha1.Shard{wrong}))
	require.ElementsMatch(t, documented.Conditions(t, "WorkspaceType"), reported)
}
