package access

import (
	"fmt"
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
			e.Eventually("the label follows the phase", func() bool {
				labelled, err := kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root"))).List(t.Context(), metav1.ListOptions{LabelSelector: "tenancy.kcp.io/phase=Ready"})
				require.NoError(t, err)
				return slices.ContainsFunc(labelled.Items, func(other tenancyv1alpha1.Workspace) bool { return other.UID == ws.UID })
			})
			require.Contains(t, ws.Finalizers, "core.kcp.io/logicalcluster")
			require.Equal(t, shard, e.Placement(ws.Spec.Cluster))

			lc, err := kinds.LogicalClusters.In(e.ProxyClient.Cluster(kit.Path("root:on-"+shard))).Get(t.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, lc.Status.Phase)
			require.Equal(t, ws.Spec.URL, lc.Status.URL)
			require.Equal(t, "root:on-"+shard, lc.Annotations["kcp.io/path"])
			require.Equal(t, ws.UID, lc.Spec.Owner.UID)

			_, err = kinds.Namespaces.In(e.ProxyClient.Cluster(kit.Path(ws.Spec.Cluster))).Get(t.Context(), "default", metav1.GetOptions{})
			require.NoError(t, err, "the default namespace is there as soon as the workspace is Ready")
		}
	})
	t.Run("three levels on both shards", func(t *testing.T) {
		parent := "root"
		for level, shard := range []string{"shard-1", "root", "shard-1"} {
			name := fmt.Sprintf("level-%d", level)
			ws := e.WorkspaceOn(parent, name, shard)
			parent += ":" + name
			require.True(t, strings.HasSuffix(ws.Spec.URL, "/clusters/"+parent), ws.Spec.URL)
			byPath, err := kinds.LogicalClusters.In(e.ProxyClient.Cluster(kit.Path(parent))).Get(t.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, ws.Spec.Cluster, byPath.Annotations["kcp.io/cluster"])
		}
	})
	t.Run("no shard matches", func(t *testing.T) { testUnschedulable(t, e) })
	t.Run("deletion removes everything", func(t *testing.T) { testDeletion(t, e) })
}

func testUnschedulable(t *testing.T, e *kit.Env) {
	in := kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root")))
	e.NewWorkspace("root", "nowhere", "no-such-shard")
	e.Eventually("the condition says that no shard matches", func() bool { return unschedulable(t, in, "nowhere") })
	require.NoError(t, in.Delete(t.Context(), "nowhere", metav1.DeleteOptions{}))
	e.Eventually("a workspace that was never scheduled can be deleted", func() bool {
		_, err := in.Get(t.Context(), "nowhere", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// unschedulable reports whether a workspace says that there is no shard for it, and why.
func unschedulable(t *testing.T, in *client.Client[*tenancyv1alpha1.Workspace, *tenancyv1alpha1.WorkspaceList], name string) bool {
	t.Helper()
	ws, err := in.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return conditions.IsFalse(ws, tenancyv1alpha1.WorkspaceScheduled) &&
		conditions.GetReason(ws, tenancyv1alpha1.WorkspaceScheduled) == tenancyv1alpha1.WorkspaceReasonUnschedulable &&
		conditions.GetMessage(ws, tenancyv1alpha1.WorkspaceScheduled) != ""
}

func listWorkspaces(t *testing.T, e *kit.Env, parent string) []tenancyv1alpha1.Workspace {
	t.Helper()
	list, err := kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path(parent))).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

// testDeletion deletes a workspace that holds built-in objects, one of them
// with a finalizer that its owner takes away, and a child workspace on the other shard.
func testDeletion(t *testing.T, e *kit.Env) {
	doomed := e.WorkspaceOn("root", "doomed", "shard-1")
	child := e.WorkspaceOn("root:doomed", "child", "root")
	inside := e.ProxyClient.Cluster(kit.Path("root:doomed"))
	_, err := kinds.Namespaces.In(inside).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "extra"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}
	_, err = kinds.ConfigMaps.InNamespace(inside, "extra").Create(t.Context(), held, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = kinds.Secrets.InNamespace(inside, "default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	p := kit.People{Env: e}
	p.BindUser("root:doomed", "keeper", "cluster-admin", 4)

	workspaces := kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root")))
	require.NoError(t, workspaces.Delete(t.Context(), "doomed", metav1.DeleteOptions{}))
	onShard := e.ShardClients["shard-1"].Cluster(kit.Path(doomed.Spec.Cluster))
	e.Eventually("the secret is gone", func() bool {
		_, err := kinds.Secrets.InNamespace(onShard, "default").Get(t.Context(), "s", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	ws, err := workspaces.Get(t.Context(), "doomed", metav1.GetOptions{})
	require.NoError(t, err, "the workspace stays while something it holds is held by a finalizer")
	require.NotNil(t, ws.DeletionTimestamp)

	// Nobody creates anything any more, and who has the rights to can still look and let go.
	for _, c := range []kubernetes.Interface{p.As(4, doomed.Spec.Cluster), p.Admin(doomed.Spec.Cluster)} {
		_, err = c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, "unable to create new content in the logical cluster because it is being deleted")
	}
	maps := p.As(4, doomed.Spec.Cluster).CoreV1().ConfigMaps("extra")
	_, err = maps.Get(t.Context(), "held", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = maps.Patch(t.Context(), "held", kit.MergePatch, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	e.Eventually("the workspace is gone", func() bool {
		_, err := workspaces.Get(t.Context(), "doomed", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	for shard, cluster := range map[string]string{"shard-1": doomed.Spec.Cluster, "root": child.Spec.Cluster} {
		requireEmpty(t, e, shard, cluster)
	}
	kit.RequireStatus(t, e.Proxy(), kit.Request{Path: "/clusters/root:doomed/api/v1/namespaces"}, 403)
}

// requireEmpty holds that a shard has nothing of a logical cluster left.
func requireEmpty(t *testing.T, e *kit.Env, shard, cluster string) {
	t.Helper()
	scope := e.ShardClients[shard].Cluster(kit.Path(cluster))
	for _, count := range []func() (int, error){
		func() (int, error) {
			l, err := kinds.Namespaces.In(scope).List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		func() (int, error) {
			l, err := kinds.ConfigMaps.In(scope).List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		func() (int, error) {
			l, err := kinds.Secrets.In(scope).List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		func() (int, error) {
			l, err := kinds.ClusterRoleBindings.In(scope).List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		func() (int, error) {
			l, err := kinds.LogicalClusters.In(scope).List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
	} {
		n, err := count()
		require.NoError(t, err)
		require.Zero(t, n)
	}
}
