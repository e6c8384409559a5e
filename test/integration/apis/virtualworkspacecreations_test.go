package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// apply sends an apply, and returns its code and answer.
func applyAs(k kit.WorkspaceClient, path, body string) (code int, says string) {
	k.T.Helper()
	return writeAs(k, http.MethodPatch, path+"?fieldManager=test", "apply-patch+yaml", body)
}

func configMap(name string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name)
}

// allowed gives a user verbs on a resource, or on one object of it.
func untilAllowed(k kit.WorkspaceClient, role, user, group, resource, object string, verbs ...string) {
	k.T.Helper()
	if object != "" {
		object = fmt.Sprintf(`"resourceNames":[%q],`, object)
	}
	k.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":%q},"rules":[{"apiGroups":[%q],"resources":[%q],%s"verbs":["%s"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`,
		role, group, resource, object, strings.Join(verbs, `","`))
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%[2]q}]}`, role, user)
}

// testViewCreations: an apply or update that creates through the view of an export needs what a
// creation needs, and nothing else.
func testViewCreations(t *testing.T, e *kit.Env, shard int) {
	provider, _, consumers := consumersOn(t, e, shard, "creations", 1)
	k := consumers[0]
	const claims = `{"group":"","resource":"configmaps","verbs":["*"]%[1]s},{"group":"","resource":"secrets","verbs":["get","patch","update"]%[1]s}`
	provider.ClaimInExport(`[` + fmt.Sprintf(claims, "") + `]`)
	k.AcceptClaims(`[` + fmt.Sprintf(claims, `,"selector":{"matchAll":true},"state":"Accepted"`) + `]`)
	untilAllowed(provider, "content", "user-1", "apis.kcp.io", "apiexports/content", "e", "get", "patch", "update")
	in := provider.ThroughExport("e", k.ClusterName).As("user-1-token")
	in.Eventually("it is let in", func() bool {
		code, _ := in.TryDo(http.MethodGet, kit.ConfigMapsPath, "") // a list
		get, _ := in.TryDo(http.MethodGet, kit.ConfigMapsPath+"/none", "")
		return code == http.StatusForbidden && get == http.StatusNotFound
	})
	secrets := strings.Replace(kit.ConfigMapsPath, "configmaps", "secrets", 1)
	const secret = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`
	for path, body := range map[string]string{kit.WidgetsPath + "/a": kit.Widget("a", "size", 1), kit.ConfigMapsPath + "/a": configMap("a"), secrets + "/a": secret} {
		code, says := applyAs(in, path, body)
		require.Equal(t, http.StatusForbidden, code, "%s: %s", path, says)
		code, says = in.TryDo(http.MethodPut, path, body)
		require.NotEqual(t, http.StatusCreated, code, "%s: %s", path, says)
	}
	require.Empty(t, resourceVersions(k, kit.WidgetsPath))

	untilAllowed(provider, "create", "user-1", "apis.kcp.io", "apiexports/content", "e", "create")
	in.Eventually("it may create", func() bool {
		code, _ := applyAs(in, kit.WidgetsPath+"/a", kit.Widget("a", "size", 1))
		return code == http.StatusCreated
	})
	code, says := applyAs(in, kit.WidgetsPath+"/a", kit.Widget("a", "size", 2))
	require.Equal(t, http.StatusOK, code, says)
	code, says = applyAs(in, kit.ConfigMapsPath+"/a", configMap("a"))
	require.Equal(t, http.StatusCreated, code, says)
	code, says = applyAs(in, secrets+"/a", secret)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "no APIBinding in the logical cluster lets the APIExport e create secrets")

	// The policy is for consumers.
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	k.Create(kit.RBACPath+"clusterrolebindings", kit.AllRights)
	consumer := k.As("user-1-token")
	consumer.Eventually("the policy holds for consumers", func() bool {
		code, says := applyAs(consumer, kit.WidgetsPath+"/mine", kit.Widget("mine", "size", 1))
		return code == http.StatusForbidden && strings.Contains(says, "maximal permission policy")
	})
	code, says = applyAs(in, kit.WidgetsPath+"/b", kit.Widget("b", "size", 1))
	require.Equal(t, http.StatusCreated, code, says)
}

// testPolicyInTypeViews: the maximal permission policies of bound APIs hold for initializers, as whom
// they reach the content. home has the type and the export, and the workspace is on shard root.
func testPolicyInTypeViews(t *testing.T, home kit.WorkspaceClient) {
	home.CreateExport("e", home.CreateSchema("v1", "widgets", "size"))
	home.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	home.CreateWorkspaceType("apps", `"initializer":true,"defaultAPIBindings":[{"export":"e","path":"`+home.ClusterName+`"}]`)
	grant(home, "apps", "initialize")
	home.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`)
	owner := home.As("user-2-token")
	owner.Eventually("the owner may make workspaces", func() bool {
		code, _ := owner.TryDo(http.MethodGet, kit.TenancyPath+"workspaces", "")
		return code == http.StatusOK
	})
	made := owner.CreateWorkspaceOfType("one", "apps", 0)
	in := typeView(onShard(home, 0).As("user-1-token"), "initializing", "apps", made.ClusterName)

	// As the owner, whose role and the binding come first.
	refused := func() bool {
		code, says := in.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
		return code == http.StatusForbidden && strings.Contains(says, "access not permitted by maximal permission policy")
	}
	in.Eventually("the owner has its role", func() bool {
		code, _ := in.TryDo(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
		return code == http.StatusCreated || code == http.StatusConflict
	})
	in.Eventually("the owner is nobody to the provider", refused)
	// What the provider permits the owner is not the initializer's, but what it permits everybody is.
	untilAllowed(home, "owners", "apis.kcp.io:binding:user-2", "example.org", "widgets", "", "create", "patch")
	permit := func(name, verbs string) {
		home.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":%q},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":[%s]}]}`, name, verbs)
		home.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:system:authenticated"}]}`, name)
	}
	permit("readers", `"list"`)
	in.Eventually("the provider lets everybody read", func() bool {
		code, _ := in.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code == http.StatusOK
	})
	require.True(t, refused(), "the initializer is not the owner to the provider")
	permit("writers", `"create","patch"`)
	in.Eventually("the provider permits it", func() bool {
		code, _ := in.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
		return code == http.StatusCreated || code == http.StatusConflict // one was made that was answered late
	})
	code, says := applyAs(in, kit.WidgetsPath+"/b", kit.Widget("b", "size", 1))
	require.Equal(t, http.StatusCreated, code, says)

	// By the permissions of the type, as itself.
	home.Do(http.StatusOK, http.MethodPatch, kit.TenancyPath+"workspacetypes/apps", `{"spec":{"initializerPermissions":[{"apiGroups":["example.org"],"resources":["*"],"verbs":["*"]}]}}`)
	for _, name := range []string{"readers", "writers"} {
		home.Do(http.StatusOK, http.MethodDelete, kit.RBACPath+"clusterrolebindings/"+name, "")
	}
	in.Eventually("the initializer is nobody to the provider", refused)
	untilAllowed(home, "initializers", "apis.kcp.io:binding:user-1", "example.org", "widgets", "", "create", "patch")
	in.Eventually("the provider permits it", func() bool {
		code, _ := applyAs(in, kit.WidgetsPath+"/c", kit.Widget("c", "size", 1))
		return code == http.StatusCreated
	})
}
