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
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const homePath = "/clusters/root" + kit.TenancyPath + "workspaces/~"

// homeOf returns the home workspace of a user once it is ready.
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

// TestHomes checks that a GET of ~ creates a workspace for the user, which no other user can access.
func TestHomes(t *testing.T) {
	t.Parallel()
	e := kit.SharedUnchanged(t)
	t.Run("own", func(t *testing.T) { testOwnHomes(t, e) })
	t.Run("of other users", func(t *testing.T) { testHomesOfOthers(t, e) })
	t.Run("deleted", func(t *testing.T) { testDeletedHome(t, e) })
}

// testOwnHomes checks that the hash of the user name determines the logical cluster, and that homes have children.
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
		require.Equal(t, cluster, homeOf(e, kit.WithToken(e.Shard(0), name+"-token")).Spec.Cluster, "through the shard of root")

		clients := harness.NewFactory(t, config)
		for _, at := range []string{"user:" + name, cluster} {
			in := kinds.ConfigMaps.InNamespace(clients.Cluster(kit.Path(at)), "default")
			harness.Create(t, in, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}})
		}
		lc := harness.Get(t, kinds.LogicalClusters.In(clients.Cluster(kit.Path("user:"+name))), "cluster")
		require.Equal(t, "user:"+name, lc.Annotations["kcp.io/path"])
		require.Equal(t, "root:home", lc.Annotations["internal.tenancy.kcp.io/type"])
		require.Contains(t, lc.Annotations["experimental.tenancy.kcp.io/owner"], name)
		require.Equal(t, name, lc.Spec.CreatedBy.Username)
		binding := harness.Get(t, kinds.ClusterRoleBindings.In(clients.Cluster(kit.Path(cluster))), "workspace-admin")
		require.Equal(t, []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}, binding.Subjects)

		child := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "child"}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal"}}}
		harness.Create(t, kinds.Workspaces.In(clients.Cluster(kit.Path("user:"+name))), child)
		e.Eventually("the child workspace is served", func() bool {
			_, err := kinds.Namespaces.In(clients.Cluster(kit.Path("user:"+name+":child"))).Get(t.Context(), "default", metav1.GetOptions{})
			return err == nil
		})
	}
	workspaces := harness.List(t, kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root"))), metav1.ListOptions{})
	for _, ws := range workspaces.Items {
		require.False(t, ws.Spec.Type != nil && ws.Spec.Type.Name == "home", "the Workspaces of homes must be hidden: %s", ws.Name)
	}
}

// testHomesOfOthers checks that a home of another user looks like a missing one, also if the hashes of the names collide, and that
// users must not get one if their name is not unique.
func testHomesOfOthers(t *testing.T, e *kit.Env) {
	other := kit.WithToken(e.Proxy(), "user-2-token")
	got := kit.RequireStatus(t, other, kit.Request{Path: "/clusters/user:user-1" + kit.ConfigMapsPath}, http.StatusForbidden)
	unknown := kit.RequireStatus(t, other, kit.Request{Path: "/clusters/user:unknown" + kit.ConfigMapsPath}, http.StatusForbidden)
	require.Equal(t, unknown, got)

	// This home has the hash of user-3 in its name.
	const taken = "erwcjwxiortp"
	harness.Create(t, kinds.Workspaces.In(e.ShardClients["root"].Cluster(kit.Path("system:homes"))), &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: taken, Annotations: map[string]string{
			"internal.tenancy.kcp.io/cluster": taken, "experimental.tenancy.kcp.io/owner": `{"username":"her-namesake"}`,
		}},
		Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "home", Path: "root"}},
	})
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

// testDeletedHome checks that a user gets a new, empty home if the LogicalCluster is deleted.
func testDeletedHome(t *testing.T, e *kit.Env) {
	config := kit.WithToken(e.Proxy(), "user-5-token")
	homeOf(e, config)
	clients := harness.NewFactory(t, config)
	lcs := kinds.LogicalClusters.In(clients.Cluster(kit.Path("user:user-5")))
	before := harness.Get(t, lcs, "cluster")
	harness.Create(t, kinds.ConfigMaps.InNamespace(clients.Cluster(kit.Path("user:user-5")), "default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "old"}})
	require.NoError(t, lcs.Delete(t.Context(), "cluster", metav1.DeleteOptions{}))
	var last string
	defer func() {
		if t.Failed() {
			t.Log(last)
		}
	}()
	e.Eventually("there is a new home", func() bool {
		code, body := kit.Do(t, config, kit.Request{Path: homePath})
		require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, code, "%s", body)
		lc, err := lcs.Get(t.Context(), "cluster", metav1.GetOptions{})
		last = fmt.Sprint(code, string(body), err, lc)
		return err == nil && lc.UID != before.UID && code == http.StatusOK
	})
	list := harness.List(t, kinds.ConfigMaps.InNamespace(clients.Cluster(kit.Path("user:user-5")), "default"), metav1.ListOptions{})
	for _, cm := range list.Items {
		require.NotEqual(t, "old", cm.Name)
	}
}

// testHomeCreators checks that only members of the groups in the flag get a new home.
func testHomeCreators(t *testing.T, e *kit.Env) {
	denied := kit.RequireStatus(t, kit.WithToken(e.Proxy(), "user-1-token"), kit.Request{Path: homePath}, http.StatusForbidden)
	require.Equal(t, `workspaces.tenancy.kcp.io "~" is forbidden: User "user-1" cannot create resource "workspaces" in API group "tenancy.kcp.io" at the cluster scope: workspace access not permitted`, denied.Message)
	admin := homeOf(e, e.Proxy())
	require.Equal(t, corev1alpha1.LogicalClusterPhaseReady, admin.Status.Phase)
}
