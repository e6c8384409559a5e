package access

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

func TestAuthorization(t *testing.T) {
	t.Parallel()
	p := kit.People{Env: kit.SharedUnchanged(t)}
	one, two := p.WorkspaceOn("root", "one", "root"), p.WorkspaceOn("root", "two", "shard-1")
	require.NotEqual(t, one.Spec.Cluster, two.Spec.Cluster)

	t.Run("strangers", func(t *testing.T) { testDenied(t, p, one.Spec.Cluster) })
	t.Run("escalation", func(t *testing.T) { testEscalation(t, p) })
	t.Run("impersonation", func(t *testing.T) { testImpersonation(t, p) })
	t.Run("owner", func(t *testing.T) { testOwner(t, p) })
	t.Run("required groups of workspaces", func(t *testing.T) { testRequiredGroupsOfWorkspaces(t, p) })
	t.Run("policy", func(t *testing.T) { testPolicy(t, p) })
	t.Run("bindings have immediate effect", func(t *testing.T) { testImmediateEffect(t, p) })
}

// deniedPaths are handled by different filters and handlers.
var deniedPaths = []string{"/api/v1/namespaces/default/configmaps/x", "/readyz", "/metrics", "/clusters/root/api"}

// testDenied checks that users without access get the same response for a workspace and for a name that does not exist,
// from the front-proxy and from the shard.
func testDenied(t *testing.T, p kit.People, one string) {
	stranger := kit.WithToken(p.Proxy(), "user-5-token")
	for host, clusters := range map[string][]string{
		// Few, because the front-proxy delays each response.
		p.Proxy().Host:  {"root:one", "root:nowhere"},
		p.Shard(0).Host: {"root:one", "root:nowhere", one, "0123456789abcdef"},
	} {
		var requests []kit.Request
		for _, cluster := range clusters {
			for _, path := range deniedPaths {
				requests = append(requests, kit.Request{Path: "/clusters/" + cluster + path})
			}
			requests = append(requests, kit.Request{Path: "/clusters/" + cluster + "/api", Header: http.Header{"Impersonate-User": {"x"}}})
		}
		responses := make([]string, len(requests))
		t.Run(host, func(t *testing.T) {
			for i, request := range requests {
				t.Run(request.Path, func(t *testing.T) {
					t.Parallel()
					code, message := http.StatusForbidden, kit.NotPermitted
					switch {
					case strings.HasSuffix(request.Path, "/metrics"):
						code, message = http.StatusNotImplemented, "an endpoint of the process"
					case request.Header != nil:
						message = ""
					}
					status := kit.RequireStatus(t, kit.AtHost(stranger, host), request, code)
					require.Contains(t, status.Message, message)
					responses[i] = fmt.Sprintf("%+v", status)
				})
			}
		})
		for i, response := range responses {
			require.Equal(t, responses[i%(len(deniedPaths)+1)], response, "at %s", host)
		}
	}
	// Any user has access to root, but no permissions there.
	_, err := p.As(5, "root").Discovery().ServerVersion()
	require.NoError(t, err)
	_, err = p.As(5, "root").CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	require.EqualError(t, err, `namespaces is forbidden: User "user-5" cannot list resource "namespaces" in API group "" at the cluster scope`)
	_, err = p.As(5, "root").CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
	require.EqualError(t, err, `secrets "s" is forbidden: User "user-5" cannot get resource "secrets" in API group "" in the namespace "default"`)
}

// testEscalation checks that an administrator of a namespace must not become an administrator of the logical cluster.
// TestGuard of pkg/registry/rbac covers all ways.
func testEscalation(t *testing.T, p kit.People) {
	harness.Create(t, p.Admin("root:one").RbacV1().RoleBindings("default"), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "namespace-admin"},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: "user-2"}},
	})
	p.BindUser("root:one", "access-2", "system:kcp:workspace:access", 2)
	mine := p.As(2, "root:one").RbacV1()
	role := func(name, resource string) *rbacv1.Role {
		return &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{resource}}},
		}
	}
	p.Eventually("the rules of admin are aggregated", func() bool {
		_, err := mine.Roles("default").Create(t.Context(), role("own", "configmaps"), metav1.CreateOptions{})
		return err == nil
	})
	_, err := mine.Roles("default").Create(t.Context(), role("more", "nodes"), metav1.CreateOptions{})
	require.EqualError(t, err, `roles.rbac.authorization.k8s.io "more" is forbidden: user "user-2" (groups=["team-2" "system:authenticated"]) is attempting to grant RBAC permissions not currently held:
{APIGroups:[""], Resources:["nodes"], Verbs:["get", "list"]}`)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: "user-2"}},
	}
	_, err = mine.RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{})
	require.ErrorContains(t, err, "attempting to grant RBAC permissions not currently held")
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// testImpersonation checks that permission to impersonate in one logical cluster has no effect elsewhere.
// TestImpersonationGuard of pkg/authz covers all names and groups.
func testImpersonation(t *testing.T, p kit.People) {
	p.CreateRole("root:one", "impersonator", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}})
	p.BindUser("root:one", "impersonator", "impersonator", 3)
	p.BindUser("root:one", "access-3", "system:kcp:workspace:access", 3)
	p.BindUser("root:two", "access-3", "system:kcp:workspace:access", 3)
	as := func(cluster string, user rest.ImpersonationConfig) error {
		config := kit.WithToken(p.Proxy(), "user-3-token")
		config.Impersonate = user
		_, err := p.With(config, cluster).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	p.BindUser("root:one", "cluster-admin-5", "cluster-admin", 5)
	p.BindUser("root:two", "cluster-admin-5", "cluster-admin", 5)
	require.NoError(t, as("root:one", rest.ImpersonationConfig{UserName: "user-5"}))
	err := as("root:two", rest.ImpersonationConfig{UserName: "user-5"})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `User "user-3" cannot impersonate`)
	require.True(t, apierrors.IsForbidden(as("root:one", rest.ImpersonationConfig{UserName: "x", Groups: []string{"system:masters"}})))
}

// testOwner checks that the creator of a workspace is its administrator once it is Ready, on every shard.
func testOwner(t *testing.T, p kit.People) {
	p.CreateRole("root", "workspace-creator", rbacv1.PolicyRule{Verbs: []string{"create", "get", "list", "watch"}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspaces"}})
	p.BindUser("root", "workspace-creator", "workspace-creator", 4)
	as4 := kit.People{Env: &kit.Env{Cluster: p.Cluster, T: t, ProxyClient: harness.NewFactory(t, kit.WithToken(p.Proxy(), "user-4-token")), CacheClient: p.CacheClient, ShardClients: p.ShardClients}}
	for _, shard := range []string{"root", "shard-1"} {
		ws := as4.WorkspaceOn("root", "mine-"+shard, shard)
		p.Eventually("the owner annotation contains only the name", func() bool {
			kept, err := kinds.Workspaces.In(p.ProxyClient.Cluster(kit.Path("root"))).Get(t.Context(), ws.Name, metav1.GetOptions{})
			return err == nil && kept.Annotations["experimental.tenancy.kcp.io/owner"] == `{"username":"user-4"}`
		})
		lc := harness.Get(t, kinds.LogicalClusters.In(p.ProxyClient.Cluster(kit.Path("root:mine-"+shard))), "cluster")
		require.Contains(t, lc.Annotations["experimental.tenancy.kcp.io/owner"], `"groups":[`)
		require.Equal(t, "user-4", lc.Spec.CreatedBy.Username)
		harness.Create(t, p.As(4, "root:mine-"+shard).CoreV1().Secrets("default"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}})
		_, err := p.As(5, "root:mine-"+shard).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		require.ErrorContains(t, err, kit.NotPermitted)
	}
}

// testRequiredGroupsOfWorkspaces checks that the required groups of a Workspace apply to its logical cluster, and to workspaces
// below it that specify none, on any shard.
func testRequiredGroupsOfWorkspaces(t *testing.T, p kit.People) {
	const annotation = "authorization.kcp.io/required-groups"
	status := kit.RequireStatus(t, kit.WithToken(p.Proxy(), "user-4-token"), kit.Request{
		Method: http.MethodPost, Path: "/clusters/root" + kit.TenancyPath + "workspaces",
		Body: `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"grouped","annotations":{"` + annotation + `":"team-1"}}}`,
	}, http.StatusForbidden)
	require.Contains(t, status.Message, annotation)

	// Administrators of the installation need not be members.
	create := func(parent, name, shard, groups string) string {
		in := kinds.Workspaces.In(p.ProxyClient.Cluster(kit.Path(parent)))
		ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if groups != "" {
			ws.Annotations = map[string]string{annotation: groups}
		}
		ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": shard}}}
		harness.Create(t, in, ws)
		p.Eventually("the workspace is ready", func() bool {
			var err error
			ws, err = in.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
		})
		harness.Create(t, kinds.ClusterRoleBindings.In(p.ProxyClient.Cluster(kit.Path(ws.Spec.Cluster))), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "member"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "user-1"}},
		})
		return ws.Spec.Cluster
	}
	for name, groups := range map[string]string{"team": "others;team-1", "foreign": "team-1,others"} {
		above := create("root", name, "root", groups)
		for _, cluster := range []string{above, create(above, "near", "root", ""), create(above, "far", "shard-1", "")} {
			lc := harness.Get(t, kinds.LogicalClusters.In(shardOf(p.Env, cluster).Cluster(kit.Path(cluster))), "cluster")
			require.Equal(t, groups, lc.Annotations[annotation])
			list := func() error {
				_, err := p.As(1, cluster).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
				return err
			}
			if name == "team" {
				p.Eventually("a member has access", func() bool { return list() == nil })
			} else {
				require.ErrorContains(t, list(), kit.NotPermitted, cluster)
			}
		}
	}
}

// testPolicy checks that only members of system:masters can change the policy of the system, and that objects are restored if they are
// deleted.
func testPolicy(t *testing.T, p kit.People) {
	kit.RequireStatus(t, kit.AtHost(p.Proxy(), p.Shard(0).Host), kit.Request{Path: "/clusters/system:admin/apis/rbac.authorization.k8s.io/v1/clusterroles"}, http.StatusForbidden)
	kit.RequireStatus(t, p.Proxy(), kit.Request{Path: "/clusters/system:admin/apis/rbac.authorization.k8s.io/v1/clusterroles"}, http.StatusForbidden)
	system := p.With(p.Shard(0), "system:admin").RbacV1()
	// Other tests do not use these two.
	require.NoError(t, system.ClusterRoles().Delete(t.Context(), "system:auth-delegator", metav1.DeleteOptions{}))
	require.NoError(t, system.ClusterRoleBindings().Delete(t.Context(), "system:monitoring", metav1.DeleteOptions{}))
	p.Eventually("the role and the binding are restored", func() bool {
		role, err := system.ClusterRoles().Get(t.Context(), "system:auth-delegator", metav1.GetOptions{})
		_, bindingErr := system.ClusterRoleBindings().Get(t.Context(), "system:monitoring", metav1.GetOptions{})
		return err == nil && bindingErr == nil && len(role.Rules) > 0
	})
}

// testImmediateEffect checks that the next request observes a new or deleted binding.
func testImmediateEffect(t *testing.T, p kit.People) {
	read := func() error {
		_, err := p.As(4, "root:two").CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	// Responses to users without access are delayed, so user-4 gets access.
	p.BindUser("root:two", "access-4", "system:kcp:workspace:access", 4)
	for n := range 5 {
		require.True(t, apierrors.IsForbidden(read()), "round %d", n)
		p.BindUser("root:two", "brief", "cluster-admin", 4)
		require.NoError(t, read(), "round %d", n)
		require.NoError(t, p.Admin("root:two").RbacV1().ClusterRoleBindings().Delete(t.Context(), "brief", metav1.DeleteOptions{}))
	}
}

// shardOf returns the client of the shard of a logical cluster.
func shardOf(e *kit.Env, cluster string) *client.Factory {
	e.T.Helper()
	return e.ShardClients[e.Placement(cluster)]
}
