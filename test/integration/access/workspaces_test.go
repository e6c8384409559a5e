package access

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

func TestWorkspaces(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	t.Run("Ready with URL and annotations", func(t *testing.T) {
		for _, shard := range []string{"root", "shard-1"} {
			ws := e.WorkspaceOn("root", "on-"+shard, shard)
			require.Equal(t, e.Proxy().Host+"/clusters/root:on-"+shard, ws.Spec.URL)
			require.Regexp(t, "^[a-z0-9]{16}$", ws.Spec.Cluster)
			require.Equal(t, ws.Spec.Cluster, ws.Annotations["internal.tenancy.kcp.io/cluster"])
			require.NotEmpty(t, ws.Annotations["internal.tenancy.kcp.io/shard"])
			require.Equal(t, "root", ws.Annotations["kcp.io/cluster"])
			e.Eventually("the label equals the phase", func() bool {
				labelled := harness.List(t, kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root"))), metav1.ListOptions{LabelSelector: "tenancy.kcp.io/phase=Ready"})
				return slices.ContainsFunc(labelled.Items, func(other tenancyv1alpha1.Workspace) bool { return other.UID == ws.UID })
			})
			require.Contains(t, ws.Finalizers, "core.kcp.io/logicalcluster")
			require.Equal(t, shard, e.Placement(ws.Spec.Cluster))

			lc := harness.Get(t, kinds.LogicalClusters.In(e.ProxyClient.Cluster(kit.Path("root:on-"+shard))), corev1alpha1.LogicalClusterName)
			require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, lc.Status.Phase)
			require.Equal(t, ws.Spec.URL, lc.Status.URL)
			require.Equal(t, "root:on-"+shard, lc.Annotations["kcp.io/path"])
			require.Equal(t, ws.UID, lc.Spec.Owner.UID)

			_, err := kinds.Namespaces.In(e.ProxyClient.Cluster(kit.Path(ws.Spec.Cluster))).Get(t.Context(), "default", metav1.GetOptions{})
			require.NoError(t, err, "a Ready workspace must have the namespace default")
		}
	})
	t.Run("three levels on both shards", func(t *testing.T) {
		parent := "root"
		for level, shard := range []string{"shard-1", "root", "shard-1"} {
			name := fmt.Sprintf("level-%d", level)
			ws := e.WorkspaceOn(parent, name, shard)
			parent += ":" + name
			require.True(t, strings.HasSuffix(ws.Spec.URL, "/clusters/"+parent), ws.Spec.URL)
			byPath := harness.Get(t, kinds.LogicalClusters.In(e.ProxyClient.Cluster(kit.Path(parent))), corev1alpha1.LogicalClusterName)
			require.Equal(t, ws.Spec.Cluster, byPath.Annotations["kcp.io/cluster"])
		}
	})
	t.Run("no shard matches", func(t *testing.T) { testUnschedulable(t, e) })
	t.Run("deletion removes everything", func(t *testing.T) { testDeletion(t, e) })
}

func testUnschedulable(t *testing.T, e *kit.Env) {
	in := kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root")))
	e.NewWorkspace("root", "nowhere", "no-such-shard")
	e.Eventually("the condition reports that no shard matches", func() bool { return unschedulable(t, in, "nowhere") })
	require.NoError(t, in.Delete(t.Context(), "nowhere", metav1.DeleteOptions{}))
	e.Eventually("the unscheduled workspace is deleted", func() bool {
		_, err := in.Get(t.Context(), "nowhere", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// unschedulable reports whether the condition WorkspaceScheduled is False with a message.
func unschedulable(t *testing.T, in *client.Client[*tenancyv1alpha1.Workspace, *tenancyv1alpha1.WorkspaceList], name string) bool {
	t.Helper()
	ws := harness.Get(t, in, name)
	return conditions.IsFalse(ws, tenancyv1alpha1.WorkspaceScheduled) &&
		conditions.GetReason(ws, tenancyv1alpha1.WorkspaceScheduled) == tenancyv1alpha1.WorkspaceReasonUnschedulable &&
		conditions.GetMessage(ws, tenancyv1alpha1.WorkspaceScheduled) != ""
}

// testDeletion deletes a workspace with built-in objects, one of which has a finalizer, and with a child on the other shard.
func testDeletion(t *testing.T, e *kit.Env) {
	doomed := e.WorkspaceOn("root", "doomed", "shard-1")
	child := e.WorkspaceOn("root:doomed", "child", "root")
	inside := e.ProxyClient.Cluster(kit.Path("root:doomed"))
	harness.Create(t, kinds.Namespaces.In(inside), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "extra"}})
	count := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}
	harness.Create(t, kinds.ConfigMaps.InNamespace(inside, "extra"), count)
	harness.Create(t, kinds.Secrets.InNamespace(inside, "default"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}})

	p := kit.People{Env: e}
	p.BindUser("root:doomed", "keeper", "cluster-admin", 4)

	workspaces := kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root")))
	require.NoError(t, workspaces.Delete(t.Context(), "doomed", metav1.DeleteOptions{}))
	onShard := e.ShardClients["shard-1"].Cluster(kit.Path(doomed.Spec.Cluster))
	e.Eventually("the secret is deleted", func() bool {
		_, err := kinds.Secrets.InNamespace(onShard, "default").Get(t.Context(), "s", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	ws, err := workspaces.Get(t.Context(), "doomed", metav1.GetOptions{})
	require.NoError(t, err, "the workspace must exist while an object has a finalizer")
	require.NotNil(t, ws.DeletionTimestamp)

	// No user can create objects. Authorized users can read objects and remove finalizers.
	for _, c := range []kubernetes.Interface{p.As(4, doomed.Spec.Cluster), p.Admin(doomed.Spec.Cluster)} {
		_, err = c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, "unable to create new content in the logical cluster because it is being deleted")
	}
	maps := p.As(4, doomed.Spec.Cluster).CoreV1().ConfigMaps("extra")
	harness.Get(t, maps, "held")
	_, err = maps.Patch(t.Context(), "held", kit.MergePatch, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	e.Eventually("the workspace is deleted", func() bool {
		_, err := workspaces.Get(t.Context(), "doomed", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	requireEmpty(t, e, 1, doomed.Spec.Cluster)
	requireEmpty(t, e, 0, child.Spec.Cluster)
	kit.RequireStatus(t, e.Proxy(), kit.Request{Path: "/clusters/root:doomed/api/v1/namespaces"}, 403)
}

// requireEmpty checks that a shard has no objects of a logical cluster.
func requireEmpty(t *testing.T, e *kit.Env, shard int, cluster string) {
	t.Helper()
	k := kit.WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: cluster}
	for _, list := range []string{
		"/api/v1/namespaces", "/api/v1/configmaps", "/api/v1/secrets", kit.RBACPath + "clusterrolebindings", path.Dir(kit.LogicalClusterPath),
	} {
		require.Empty(t, kit.Items(k.Get(list)), list)
	}
}
