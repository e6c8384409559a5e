package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// apply sends an apply, and returns its code and answer.
func (k apiKinds) apply(path, body string) (code int, says string) {
	k.t.Helper()
	return k.write(http.MethodPatch, path+"?fieldManager=test", "apply-patch+yaml", body)
}

func configMap(name string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name)
}

// allowed gives a user verbs on a resource, or on one object of it.
func (k apiKinds) allowed(role, user, group, resource, object string, verbs ...string) {
	k.t.Helper()
	if object != "" {
		object = fmt.Sprintf(`"resourceNames":[%q],`, object)
	}
	k.create(rbacPath+"clusterroles", `{"metadata":{"name":%q},"rules":[{"apiGroups":[%q],"resources":[%q],%s"verbs":["%s"]},{"nonResourceURLs":["/"],"verbs":["access"]}]}`,
		role, group, resource, object, strings.Join(verbs, `","`))
	k.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%[2]q}]}`, role, user)
}

// testViewCreations: an apply or update that creates through the view of an export needs what a
// creation needs, and nothing else.
func testViewCreations(t *testing.T, e *env, shard int) {
	provider, _, consumers := consumersOn(t, e, shard, "creations", 1)
	k := consumers[0]
	const claims = `{"group":"","resource":"configmaps","verbs":["*"]%[1]s},{"group":"","resource":"secrets","verbs":["get","patch","update"]%[1]s}`
	provider.claim(`[` + fmt.Sprintf(claims, "") + `]`)
	k.accept(`[` + fmt.Sprintf(claims, `,"selector":{"matchAll":true},"state":"Accepted"`) + `]`)
	provider.allowed("content", "user-1", "apis.kcp.io", "apiexports/content", "e", "get", "patch", "update")
	in := provider.through("e", k.cluster).as("user-1-token")
	in.eventually("it is let in", func() bool {
		code, _ := in.status(http.MethodGet, configMaps, "") // a list
		get, _ := in.status(http.MethodGet, configMaps+"/none", "")
		return code == http.StatusForbidden && get == http.StatusNotFound
	})
	secrets := strings.Replace(configMaps, "configmaps", "secrets", 1)
	const secret = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`
	for path, body := range map[string]string{widgets + "/a": widget("a", "size", 1), configMaps + "/a": configMap("a"), secrets + "/a": secret} {
		code, says := in.apply(path, body)
		require.Equal(t, http.StatusForbidden, code, "%s: %s", path, says)
		code, says = in.status(http.MethodPut, path, body)
		require.NotEqual(t, http.StatusCreated, code, "%s: %s", path, says)
	}
	require.Empty(t, k.versions(widgets))

	provider.allowed("create", "user-1", "apis.kcp.io", "apiexports/content", "e", "create")
	in.eventually("it may create", func() bool {
		code, _ := in.apply(widgets+"/a", widget("a", "size", 1))
		return code == http.StatusCreated
	})
	code, says := in.apply(widgets+"/a", widget("a", "size", 2))
	require.Equal(t, http.StatusOK, code, says)
	code, says = in.apply(configMaps+"/a", configMap("a"))
	require.Equal(t, http.StatusCreated, code, says)
	code, says = in.apply(secrets+"/a", secret)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "no APIBinding in the logical cluster lets the APIExport e create secrets")

	// The policy is for consumers.
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	k.create(rbacPath+"clusterrolebindings", allRights)
	consumer := k.as("user-1-token")
	consumer.eventually("the policy holds for consumers", func() bool {
		code, says := consumer.apply(widgets+"/mine", widget("mine", "size", 1))
		return code == http.StatusForbidden && strings.Contains(says, "maximal permission policy")
	})
	code, says = in.apply(widgets+"/b", widget("b", "size", 1))
	require.Equal(t, http.StatusCreated, code, says)
}

// testPolicyInTypeViews: the maximal permission policies of bound APIs hold for initializers, as whom
// they reach the content. home has the type and the export, and the workspace is on shard root.
func testPolicyInTypeViews(t *testing.T, home apiKinds) {
	home.export("e", home.schema("v1", "widgets", "size"))
	home.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	home.workspaceType("apps", `"initializer":true,"defaultAPIBindings":[{"export":"e","path":"`+home.cluster+`"}]`)
	home.grant("apps", "initialize")
	home.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`)
	owner := home.as("user-2-token")
	owner.eventually("the owner may make workspaces", func() bool {
		code, _ := owner.status(http.MethodGet, tenancyPath+"workspaces", "")
		return code == http.StatusOK
	})
	made := owner.workspaceOf("one", "apps", 0)
	in := home.at(0).as("user-1-token").typeView("initializing", "apps", made.cluster)

	// As the owner, whose role and the binding come first.
	refused := func() bool {
		code, says := in.status(http.MethodPost, widgets, widget("a", "size", 1))
		return code == http.StatusForbidden && strings.Contains(says, "access not permitted by maximal permission policy")
	}
	in.eventually("the owner has its role", func() bool {
		code, _ := in.status(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
		return code == http.StatusCreated || code == http.StatusConflict
	})
	in.eventually("the owner is nobody to the provider", refused)
	// What the provider permits the owner is not the initializer's, but what it permits everybody is.
	home.allowed("owners", "apis.kcp.io:binding:user-2", "example.org", "widgets", "", "create", "patch")
	permit := func(name, verbs string) {
		home.create(rbacPath+"clusterroles", `{"metadata":{"name":%q},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":[%s]}]}`, name, verbs)
		home.create(rbacPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:system:authenticated"}]}`, name)
	}
	permit("readers", `"list"`)
	in.eventually("the provider lets everybody read", func() bool {
		code, _ := in.status(http.MethodGet, widgets, "")
		return code == http.StatusOK
	})
	require.True(t, refused(), "the initializer is not the owner to the provider")
	permit("writers", `"create","patch"`)
	in.eventually("the provider permits it", func() bool {
		code, _ := in.status(http.MethodPost, widgets, widget("a", "size", 1))
		return code == http.StatusCreated || code == http.StatusConflict // one was made that was answered late
	})
	code, says := in.apply(widgets+"/b", widget("b", "size", 1))
	require.Equal(t, http.StatusCreated, code, says)

	// By the permissions of the type, as itself.
	home.ask(http.StatusOK, http.MethodPatch, tenancyPath+"workspacetypes/apps", `{"spec":{"initializerPermissions":[{"apiGroups":["example.org"],"resources":["*"],"verbs":["*"]}]}}`)
	for _, name := range []string{"readers", "writers"} {
		home.ask(http.StatusOK, http.MethodDelete, rbacPath+"clusterrolebindings/"+name, "")
	}
	in.eventually("the initializer is nobody to the provider", refused)
	home.allowed("initializers", "apis.kcp.io:binding:user-1", "example.org", "widgets", "", "create", "patch")
	in.eventually("the provider permits it", func() bool {
		code, _ := in.apply(widgets+"/c", widget("c", "size", 1))
		return code == http.StatusCreated
	})
}
