package access

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const homePath = "/clusters/root" + kit.TenancyPath + "workspaces/~"

// home returns the home workspace of a user, once it is ready.
func homeOf(e *kit.Env, config *rest.Config) *tenancyv1alpha1.Workspace {
	e.T.Helper()
	ws := &tenancyv1alpha1.Workspace{}
	e.Eventually("the home is ready", func() bool {
		code, body := kit.Do(e.T, config, kit.Request{Path: homePath})
		if code == http.StatusTooManyRequests {
			return false
		}
		require.Equal(e.T, http.StatusOK, code, "%s", body)
		require.NoError(e.T, json.Unmarshal(body, ws))
		return true
	})
	return ws
}

// TestHomes: who asks for ~ gets a workspace of its own, and nobody another's.
func TestHomes(t *testing.T) {
	t.Parallel()
	e := kit.SharedUnchanged(t)
	t.Run("own", func(t *testing.T) { testOwnHomes(t, e) })
	t.Run("of another", func(t *testing.T) { testHomesOfOthers(t, e) })
	t.Run("deleted", func(t *testing.T) { testDeletedHome(t, e) })
}

// testOwnHomes: homes are the logical clusters that the names hash to, and have children.
func testOwnHomes(t *testing.T, e *kit.Env) {
	for name, cluster := range map[string]string{"user-1": "285xjbwx8vocb", "user-2": "1xny8rd8rf4jl"} {
		config := kit.WithToken(e.Proxy(), name+"-token")
		ws := homeOf(e, config)
		require.Equal(t, "cluster", ws.Name)
		require.False(t, ws.CreationTimestamp.IsZero())
		require.Equal(t, cluster, ws.Spec.Cluster)
		require.Equal(t, e.Proxy().Host+"/clusters/user:"+name, ws.Spec.URL)
		require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, ws.Status.Phase)
		require.NotEmpty(t, ws.Status.Conditions)
		again := ws.DeepCopy()
		require.Equal(t, again.CreationTimestamp, homeOf(e, config).CreationTimestamp)
		require.Equal(t, cluster, homeOf(e, kit.WithToken(e.Shard(0), name+"-token")).Spec.Cluster, "at root's shard, too")

		clients := kit.NewFactory(t, config)
		for _, at := range []string{"user:" + name, cluster} {
			in := kinds.ConfigMaps.InNamespace(clients.Cluster(kit.Path(at)), "default")
			_, err := in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		lc, err := kinds.LogicalClusters.In(clients.Cluster(kit.Path("user:"+name))).Get(t.Context(), "cluster", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "user:"+name, lc.Annotations["kcp.io/path"])
		require.Equal(t, "root:home", lc.Annotations["internal.tenancy.kcp.io/type"])
		require.Contains(t, lc.Annotations["experimental.tenancy.kcp.io/owner"], name)
		require.Equal(t, name, lc.Spec.CreatedBy.Username)
		binding, err := kinds.ClusterRoleBindings.In(clients.Cluster(kit.Path(cluster))).Get(t.Context(), "workspace-admin", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}, binding.Subjects)

		child := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "child"}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal"}}}
		_, err = kinds.Workspaces.In(clients.Cluster(kit.Path("user:"+name))).Create(t.Context(), child, metav1.CreateOptions{})
		require.NoError(t, err)
		e.Eventually("the child is served", func() bool {
			_, err := kinds.Namespaces.In(clients.Cluster(kit.Path("user:"+name+":child"))).Get(t.Context(), "default", metav1.GetOptions{})
			return err == nil
		})
	}
	require.Empty(t, listHidden(t, e, "root"), "nobody sees their Workspaces")
}

func listHidden(t *testing.T, e *kit.Env, cluster string) []string {
	t.Helper()
	var names []string
	for _, ws := range listWorkspaces(t, e, cluster) {
		if ws.Spec.Type != nil && ws.Spec.Type.Name == "home" {
			names = append(names, ws.Name)
		}
	}
	return names
}

// testHomesOfOthers: the homes of others are as if there were none, also for who has a name
// of the same hash, and there are none for users whose names are not theirs alone.
func testHomesOfOthers(t *testing.T, e *kit.Env) {
	other := kit.WithToken(e.Proxy(), "user-2-token")
	got := kit.RequireStatus(t, other, kit.Request{Path: "/clusters/user:user-1" + kit.ConfigMapsPath}, http.StatusForbidden)
	unknown := kit.RequireStatus(t, other, kit.Request{Path: "/clusters/user:nobody" + kit.ConfigMapsPath}, http.StatusForbidden)
	require.Equal(t, unknown, got)

	// One that has the hash of user-3's name.
	const taken = "erwcjwxiortp"
	_, err := kinds.Workspaces.In(e.ShardClients["root"].Cluster(kit.Path("system:homes"))).Create(t.Context(), &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: taken, Annotations: map[string]string{
			"internal.tenancy.kcp.io/cluster": taken, "experimental.tenancy.kcp.io/owner": `{"username":"her-namesake"}`,
		}},
		Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "home", Path: "root"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	third := kit.WithToken(e.Proxy(), "user-3-token")
	for range 2 {
		kit.RequireStatus(t, third, kit.Request{Path: homePath}, http.StatusForbidden)
		kit.RequireStatus(t, third, kit.Request{Path: "/clusters/user:user-3" + kit.ConfigMapsPath}, http.StatusForbidden)
		kit.RequireStatus(t, third, kit.Request{Path: "/clusters/" + taken + kit.ConfigMapsPath}, http.StatusForbidden)
	}

	none := kit.RequireStatus(t, e.Proxy(), kit.Request{Path: homePath, Header: http.Header{"Impersonate-User": {"user-4"}}}, http.StatusForbidden)
	require.Equal(t, `workspaces.tenancy.kcp.io "~" is forbidden: User "user-4" cannot create resource "workspaces" in API group "tenancy.kcp.io" at the cluster scope: workspace access not permitted`, none.Message)
	in := kit.NewWorkspaceClient(e, "accounts-without-home").ForTest(t)
	kit.RequireStatus(t, kit.WithToken(e.Proxy(), in.ServiceAccountToken()), kit.Request{Path: homePath}, http.StatusForbidden)
}

// testDeletedHome: who deletes the LogicalCluster gets a new home, with nothing in it.
func testDeletedHome(t *testing.T, e *kit.Env) {
	config := kit.WithToken(e.Proxy(), "user-5-token")
	homeOf(e, config)
	clients := kit.NewFactory(t, config)
	lcs := kinds.LogicalClusters.In(clients.Cluster(kit.Path("user:user-5")))
	before, err := lcs.Get(t.Context(), "cluster", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = kinds.ConfigMaps.InNamespace(clients.Cluster(kit.Path("user:user-5")), "default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "old"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, lcs.Delete(t.Context(), "cluster", metav1.DeleteOptions{}))
	var said string
	defer func() {
		if t.Failed() {
			t.Log(said)
		}
	}()
	e.Eventually("there is a new one", func() bool {
		code, body := kit.Do(t, config, kit.Request{Path: homePath})
		require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, code, "%s", body)
		lc, err := lcs.Get(t.Context(), "cluster", metav1.GetOptions{})
		said = fmt.Sprint(code, string(body), err, lc)
		return err == nil && lc.UID != before.UID && code == http.StatusOK
	})
	list, err := kinds.ConfigMaps.InNamespace(clients.Cluster(kit.Path("user:user-5")), "default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, cm := range list.Items {
		require.NotEqual(t, "old", cm.Name)
	}
}

// testHomeCreators: only members of the groups that the flag names get a new home.
func testHomeCreators(t *testing.T, e *kit.Env) {
	denied := kit.RequireStatus(t, kit.WithToken(e.Proxy(), "user-1-token"), kit.Request{Path: homePath}, http.StatusForbidden)
	require.Equal(t, `workspaces.tenancy.kcp.io "~" is forbidden: User "user-1" cannot create resource "workspaces" in API group "tenancy.kcp.io" at the cluster scope: workspace access not permitted`, denied.Message)
	admin := homeOf(e, e.Proxy())
	require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, admin.Status.Phase)
}
