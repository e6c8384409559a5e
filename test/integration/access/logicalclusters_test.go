package access

import (
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestLogicalClusterByAdministrators holds what administrators may do with a
// LogicalCluster as such: lead it on, as an initializer does without its view.
func TestLogicalClusterByAdministrators(t *testing.T) {
	t.Parallel()
	e := kit.SharedUnchanged(t)
	types := kinds.WorkspaceTypes.In(e.ProxyClient.Cluster(kit.Path("root")))
	_, err := types.Create(t.Context(), &tenancyv1alpha1.WorkspaceType{
		ObjectMeta: metav1.ObjectMeta{Name: "led"},
		Spec: tenancyv1alpha1.WorkspaceTypeSpec{
			Initializer: true,
			Extend:      tenancyv1alpha1.WorkspaceTypeExtension{With: []tenancyv1alpha1.WorkspaceTypeReference{{Path: "root", Name: "universal"}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	workspaces := kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root")))
	_, err = workspaces.Create(t.Context(), &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: "led"}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "led", Path: "root"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	var ws *tenancyv1alpha1.Workspace
	e.Eventually("it waits for its initializer", func() bool {
		ws, err = workspaces.Get(t.Context(), "led", metav1.GetOptions{})
		return err == nil && len(ws.Status.Initializers) == 1
	})
	cluster := ws.Spec.Cluster

	as := func(config *rest.Config) *client.Client[*corev1alpha1.LogicalCluster, *corev1alpha1.LogicalClusterList] {
		return kinds.LogicalClusters.In(kit.NewFactory(t, config).Cluster(kit.Path(cluster)))
	}
	admins := as(e.Proxy())
	refused := func(change, says string, subresources ...string) {
		t.Helper()
		_, err := admins.Patch(t.Context(), corev1alpha1.LogicalClusterName, kit.MergePatch, []byte(change), metav1.PatchOptions{}, subresources...)
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, says)
	}
	refused(`{"spec":{"createdBy":{"username":"me"}}}`, "spec.createdBy is set by the system")
	refused(`{"spec":{"initializers":null}}`, "spec.initializers is set by the system")
	refused(`{"status":{"initializers":["root:led","root:more"]}}`, "can only lose", "status")
	refused(`{"status":{"phase":"Ready"}}`, "until status.initializers is empty", "status")
	refused(`{"status":{"phase":"Inactive","initializers":null}}`, "cannot become Inactive", "status")
	_, err = admins.Patch(t.Context(), corev1alpha1.LogicalClusterName, kit.MergePatch, []byte(`{"status":{"phase":"Ready","initializers":null}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	e.Eventually("the workspace is Ready", func() bool {
		ws, err = workspaces.Get(t.Context(), "led", metav1.GetOptions{})
		return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
	e.Eventually("its conditions say so", func() bool {
		lc, err := admins.Get(t.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		return err == nil && conditions.IsTrue(lc, tenancyv1alpha1.WorkspaceInitialized)
	})
	refused(`{"status":{"phase":"Initializing","initializers":["root:led"]}}`, "cannot become Initializing", "status")

	// Some make logical clusters themselves: this one is there already.
	for group, allowed := range map[string]bool{
		"system:kcp:logical-cluster-admin":          true,
		"system:kcp:tenancy:workspace-bootstrapper": true,
		"system:kcp:admin":                          false,
	} {
		config := rest.CopyConfig(shardConfig(e, cluster))
		config.Impersonate = rest.ImpersonationConfig{UserName: "maker", Groups: []string{group}}
		_, err := as(config).Create(t.Context(), &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName}}, metav1.CreateOptions{})
		if allowed {
			require.True(t, apierrors.IsAlreadyExists(err), "%s: %v", group, err)
			continue
		}
		require.True(t, apierrors.IsForbidden(err), "%s: %v", group, err)
		require.ErrorContains(t, err, "create a Workspace")
	}
}

// shardConfig reaches the shard that holds a logical cluster.
func shardConfig(e *kit.Env, cluster string) *rest.Config {
	e.T.Helper()
	if e.Placement(cluster) == "root" {
		return e.Shard(0)
	}
	return e.Shard(1)
}
