package apis

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testProviderGoes: when the workspace of a provider is deleted, what others have bound of it goes on, without its
// policy, and can be emptied and unbound.
func testProviderGoes(t *testing.T, e *kit.Env, shard int) {
	name := fmt.Sprint("parting-", shard)
	provider, k := kit.NewWorkspaceClientOn(e, name, shard).ForTest(t), kit.NewWorkspaceClient(e, name+"-consumer").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	k.BindPath(http.StatusCreated, "e", "root:"+name, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	tenant := k.As("user-1-token")
	tenant.Eventually("the provider has a say", func() bool {
		secrets, _ := tenant.TryDo(http.MethodGet, "/api/v1/secrets", "")
		code, _ := tenant.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return secrets == http.StatusOK && code == http.StatusForbidden
	})
	resource := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}
	before := watchThrough(k, resource, "default")
	next(t, before, watch.Added, "a")

	root := kit.WorkspaceClient{Env: k.Env, Config: e.Proxy(), ClusterName: "root"}
	root.Do(http.StatusOK, http.MethodDelete, kit.TenancyPath+"workspaces/"+name, "")
	root.UntilGone(kit.TenancyPath+"workspaces", name)
	bound := k.UntilBinding("e", "APIExportValid", "False APIExportNotFound")
	require.Contains(t, fmt.Sprint(kit.Field(bound, "status", "conditions")), "The APIExport does not exist: create it, or delete the binding")
	require.Equal(t, "True <nil>", kit.Condition(bound, "Ready"))
	require.Equal(t, provider.ClusterName, kit.Field(bound, "status", "apiExportClusterName"))

	// Whoever may in the consumer's workspace.
	tenant.Eventually("nobody else has a say", func() bool {
		code, _ := tenant.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("b", "size", 2))
		return code == http.StatusCreated
	})
	next(t, before, watch.Added, "b") // the former watch goes on
	untilSees(tenant, kit.WidgetsPath, "a", "b")
	tenant.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/a", `{"spec":{"size":7}}`)
	require.EqualValues(t, 7, kit.Field(tenant.Get(kit.WidgetsPath+"/a"), "spec", "size"))
	next(t, before, watch.Modified, "a")
	after := watchThrough(tenant, resource, "default")
	next(t, after, watch.Added, "a")
	require.Contains(t, fmt.Sprint(tenant.Get("/openapi/v3/apis/example.org/v1").Object), "size")

	// It is emptied, by the tenant and with the binding.
	tenant.Do(http.StatusOK, http.MethodDelete, kit.WidgetsPath+"/a", "")
	next(t, after, watch.Deleted, "a")
	tenant.Do(http.StatusOK, http.MethodDelete, kit.WidgetsPath, "")
	untilSees(tenant, kit.WidgetsPath)
	tenant.Create(kit.WidgetsPath, "%s", kit.Widget("c", "size", 3))
	tenant.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/e", "")
	next(t, after, watch.Deleted, "c")
	k.UntilGone(kit.APIsV1Alpha2+"apibindings", "e")
	k.Eventually("it is not served any more", func() bool {
		code, _ := k.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code == http.StatusNotFound
	})
}

// testClaimantGoes: the claims of an export end with it, on open watches, too.
func testClaimantGoes(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "claimant", 1)
	k, all := consumers[0], provider.ThroughExport("e", "*")
	k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"a"}}`)
	const claim = `{"group":"","resource":"configmaps","verbs":["get","list","watch"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	all.UntilShows("/api/v1/configmaps", `"name":"a"`)
	w := watchThrough(all, configMapsResource, "")
	next(t, w, watch.Added, "a")
	require.NotEmpty(t, k.Get(kit.ConfigMapsPath+"/a").GetLabels())
	provider.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apiexports/e", "")
	next(t, w, watch.Deleted, "a")
	k.UntilBinding("e", "PermissionClaimsValid", "False InvalidPermissionClaims")
	require.Empty(t, k.Get(kit.ConfigMapsPath+"/a").GetLabels())
}
