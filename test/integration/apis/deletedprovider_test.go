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

// testDeletedProvider checks that APIs remain bound if the workspace of the provider is deleted, without its policy, and that consumers
// can delete objects and bindings.
func testDeletedProvider(t *testing.T, e *kit.Env, shard int) {
	name := fmt.Sprint("parting-", shard)
	provider, k := kit.NewWorkspaceClientOn(e, name, shard).ForTest(t), kit.NewWorkspaceClient(e, name+"-consumer").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	k.BindPathReady("e", "root:"+name, "e")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	k.BindRole("all", "cluster-admin", "user-1")
	tenant := k.As("user-1-token")
	tenant.Eventually("the policy of the provider applies", func() bool {
		secrets, _ := tenant.TryDo(http.MethodGet, "/api/v1/secrets", "")
		code, _ := tenant.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return secrets == http.StatusOK && code == http.StatusForbidden
	})
	resource := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}
	before := kit.WatchThrough(k, resource, "default")
	kit.Next(t, before, watch.Added, "a")

	root := kit.WorkspaceClient{Env: k.Env, Config: e.Proxy(), ClusterName: "root"}
	root.DeleteAndWait(kit.TenancyPath + "workspaces/" + name)
	bound := k.UntilBinding("e", "APIExportValid", "False APIExportNotFound")
	require.Contains(t, fmt.Sprint(kit.Field(bound, "status", "conditions")), "The APIExport does not exist: create it, or delete the binding")
	require.Equal(t, "True <nil>", kit.Condition(bound, "Ready"))
	require.Equal(t, provider.ClusterName, kit.Field(bound, "status", "apiExportClusterName"))

	// Only the rules of the consumer apply.
	tenant.UntilCode(http.StatusCreated, http.MethodPost, kit.WidgetsPath, kit.Widget("b", "size", 2))
	kit.Next(t, before, watch.Added, "b") // the watch is still open
	kit.UntilListed(tenant, kit.WidgetsPath, "a", "b")
	tenant.Patch(kit.WidgetsPath+"/a", `{"spec":{"size":7}}`)
	require.EqualValues(t, 7, kit.Field(tenant.Get(kit.WidgetsPath+"/a"), "spec", "size"))
	kit.Next(t, before, watch.Modified, "a")
	after := kit.WatchThrough(tenant, resource, "default")
	kit.Next(t, after, watch.Added, "a")
	require.Contains(t, fmt.Sprint(tenant.Get("/openapi/v3/apis/example.org/v1").Object), "size")

	// Objects are deleted by the tenant, and with the binding.
	tenant.Delete(kit.WidgetsPath + "/a")
	kit.Next(t, after, watch.Deleted, "a")
	tenant.Delete(kit.WidgetsPath)
	kit.UntilListed(tenant, kit.WidgetsPath)
	tenant.Create(kit.WidgetsPath, "%s", kit.Widget("c", "size", 3))
	tenant.Delete(kit.APIsV1Alpha2 + "apibindings/e")
	kit.Next(t, after, watch.Deleted, "c")
	k.UntilDeleted(kit.APIsV1Alpha2 + "apibindings/e")
	k.UntilDeleted(kit.WidgetsPath)
}
