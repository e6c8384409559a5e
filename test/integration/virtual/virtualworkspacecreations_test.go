package virtual

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// applyAs sends an apply patch, and returns status code and body.
func applyAs(k kit.WorkspaceClient, path, body string) (code int, message string) {
	k.T.Helper()
	return kit.WriteAs(k, http.MethodPatch, path+"?fieldManager=test", "apply-patch+yaml", body)
}

func configMap(name string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name)
}

// allow gives a user verbs on a resource, or on one object of it.
func allow(k kit.WorkspaceClient, role, user, group, resource, object string, verbs ...string) {
	k.T.Helper()
	if object != "" {
		object = fmt.Sprintf(`"resourceNames":[%q],`, object)
	}
	k.Allow(role, user, fmt.Sprintf(`{"apiGroups":[%q],"resources":[%q],%s"verbs":[%s]},{"nonResourceURLs":["/"],"verbs":["access"]}`,
		group, resource, object, `"`+strings.Join(verbs, `","`)+`"`))
}

// testCreations checks that an apply or update that creates an object through the virtual workspace of an export requires
// permission to create.
func testCreations(t *testing.T, e *kit.Env, shard int) {
	provider, _, consumers := kit.ConsumersOn(t, e, shard, "creations", 1)
	k := consumers[0]
	const claims = `{"group":"","resource":"configmaps","verbs":["*"]%[1]s},{"group":"","resource":"secrets","verbs":["get","patch","update"]%[1]s}`
	provider.ClaimInExport(`[` + fmt.Sprintf(claims, "") + `]`)
	k.AcceptClaims(`[` + fmt.Sprintf(claims, `,"selector":{"matchAll":true},"state":"Accepted"`) + `]`)
	allow(provider, "content", "user-1", "apis.kcp.io", "apiexports/content", "e", "get", "patch", "update")
	in := provider.ThroughExport("e", k.ClusterName).As("user-1-token")
	in.Eventually("the user is authorized", func() bool {
		code, _ := in.TryDo(http.MethodGet, kit.ConfigMapsPath, "") // list is not permitted
		get, _ := in.TryDo(http.MethodGet, kit.ConfigMapsPath+"/none", "")
		return code == http.StatusForbidden && get == http.StatusNotFound
	})
	secrets := strings.Replace(kit.ConfigMapsPath, "configmaps", "secrets", 1)
	const secret = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`
	for path, body := range map[string]string{kit.WidgetsPath + "/a": kit.Widget("a", "size", 1), kit.ConfigMapsPath + "/a": configMap("a"), secrets + "/a": secret} {
		in.Do(http.StatusForbidden, http.MethodPatch, path+"?fieldManager=test", body)
		code, message := in.TryDo(http.MethodPut, path, body)
		require.NotEqual(t, http.StatusCreated, code, "%s: %s", path, message)
	}
	require.Empty(t, kit.ResourceVersions(k, kit.WidgetsPath))

	allow(provider, "create", "user-1", "apis.kcp.io", "apiexports/content", "e", "create")
	in.Eventually("the user may create", func() bool {
		code, _ := applyAs(in, kit.WidgetsPath+"/a", kit.Widget("a", "size", 1))
		return code == http.StatusCreated
	})
	in.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/a?fieldManager=test", kit.Widget("a", "size", 2))
	in.Do(http.StatusCreated, http.MethodPatch, kit.ConfigMapsPath+"/a?fieldManager=test", configMap("a"))
	denied := in.Do(http.StatusForbidden, http.MethodPatch, secrets+"/a?fieldManager=test", secret)
	require.Contains(t, kit.Field(denied, "message"), "no APIBinding in the logical cluster permits the APIExport e to create secrets")

	// The maximal permission policy applies to consumers only.
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	k.BindRole("all", "cluster-admin", "user-1")
	consumer := k.As("user-1-token")
	consumer.Eventually("the policy applies to consumers", func() bool {
		code, message := applyAs(consumer, kit.WidgetsPath+"/mine", kit.Widget("mine", "size", 1))
		return code == http.StatusForbidden && strings.Contains(message, "maximal permission policy")
	})
	in.Do(http.StatusCreated, http.MethodPatch, kit.WidgetsPath+"/b?fieldManager=test", kit.Widget("b", "size", 1))
}

// testPolicyForInitializers checks that maximal permission policies of bound APIs apply to initializers. home has the type and the export,
// and the workspace is on shard root.
func testPolicyForInitializers(t *testing.T, home kit.WorkspaceClient) {
	home.CreateExport("e", home.CreateSchema("v1", "widgets", "size"))
	home.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	home.CreateWorkspaceType("apps", `"initializer":true,"defaultAPIBindings":[{"export":"e","path":"`+home.ClusterName+`"}]`)
	grant(home, "apps", "initialize")
	owner := home.BindAdmin("user-2")
	owner.UntilCode(http.StatusOK, http.MethodGet, kit.TenancyPath+"workspaces", "")
	made := owner.CreateWorkspaceOfType("one", "apps", 0)
	in := typeVirtualWorkspace(kit.OnShard(home, 0).As("user-1-token"), "initializing", "apps", made.ClusterName)

	// The initializer acts as the owner, once the owner is authorized and the API is bound.
	refused := func() bool {
		code, message := in.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
		return code == http.StatusForbidden && strings.Contains(message, "access not permitted by maximal permission policy")
	}
	in.Eventually("the owner is authorized", func() bool {
		code, _ := in.TryDo(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
		return code == http.StatusCreated || code == http.StatusConflict
	})
	in.Eventually("the policy grants the owner no permissions", refused)
	// Permissions of the owner in the policy do not apply to the initializer, those of all users do.
	allow(home, "owners", "apis.kcp.io:binding:user-2", "example.org", "widgets", "", "create", "patch")
	permit := func(name, verbs string) {
		home.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":%q},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":[%s]}]}`, name, verbs)
		home.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:system:authenticated"}]}`, name)
	}
	permit("readers", `"list"`)
	in.UntilCode(http.StatusOK, http.MethodGet, kit.WidgetsPath, "")
	require.True(t, refused(), "permissions of the owner must not apply to the initializer")
	permit("writers", `"create","patch"`)
	in.Eventually("the policy permits the request", func() bool {
		code, _ := in.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
		return code == http.StatusCreated || code == http.StatusConflict // an earlier request may have succeeded after its timeout
	})
	in.Do(http.StatusCreated, http.MethodPatch, kit.WidgetsPath+"/b?fieldManager=test", kit.Widget("b", "size", 1))

	// With permissions that the type declares, the initializer acts as itself.
	home.Patch(kit.TenancyPath+"workspacetypes/apps", `{"spec":{"initializerPermissions":[{"apiGroups":["example.org"],"resources":["*"],"verbs":["*"]}]}}`)
	for _, name := range []string{"readers", "writers"} {
		home.Delete(kit.RBACPath + "clusterrolebindings/" + name)
	}
	in.Eventually("the policy grants the initializer no permissions", refused)
	allow(home, "initializers", "apis.kcp.io:binding:user-1", "example.org", "widgets", "", "create", "patch")
	in.Eventually("the policy permits the request", func() bool {
		code, _ := applyAs(in, kit.WidgetsPath+"/c", kit.Widget("c", "size", 1))
		return code == http.StatusCreated
	})
}
