package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestBinding checks that a logical cluster can use the APIs that another one exports.
func TestBinding(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.RunParallel("lifecycle", func(t *testing.T, e *kit.Env) { testBinding(t, e) })
	e.RunParallel("names", func(t *testing.T, e *kit.Env) { testBuiltInNames(t, e) })
	e.RunParallel("conflicts", func(t *testing.T, e *kit.Env) { testConflicts(t, e) })
	e.RunParallel("evolution", func(t *testing.T, e *kit.Env) { testBindingEvolution(t, e) })
	e.RunParallel("taking over", func(t *testing.T, e *kit.Env) {
		testTakingOver(t, kit.NewWorkspaceClient(e, "over-provider").ForTest(t), kit.NewWorkspaceClient(e, "over-consumer").ForTest(t))
	})
	e.RunParallel("taking over from another export", func(t *testing.T, e *kit.Env) {
		testSharedIdentity(t, kit.NewWorkspaceClient(e, "shared-provider").ForTest(t), kit.NewWorkspaceClient(e, "shared-consumer").ForTest(t))
	})
	e.RunParallel("content", func(t *testing.T, e *kit.Env) { testBoundContent(t, e) })
	e.RunParallel("watches", func(t *testing.T, e *kit.Env) { testBoundWatches(t, e) })
	e.RunParallel("deleted provider", func(t *testing.T, e *kit.Env) { testDeletedProvider(t, e, 0) })
	e.RunParallel("hooks", func(t *testing.T, e *kit.Env) { testProvidersHooks(t, e) })
	e.RunParallel("hooks of writers", func(t *testing.T, e *kit.Env) {
		testHooksOfWriters(t, "near-writers-provider", kit.NewWorkspaceClient(e, "near-writers-provider").ForTest(t), kit.NewWorkspaceClient(e, "near-writers-consumer").ForTest(t))
	})
	e.RunParallel("conversion", func(t *testing.T, e *kit.Env) { testConversion(t, e) })
	e.RunParallel("conversion by a webhook", func(t *testing.T, e *kit.Env) {
		testWebhookConversion(t, kit.NewWorkspaceClient(e, "webhook-provider").ForTest(t), kit.NewWorkspaceClient(e, "webhook-consumer").ForTest(t))
	})
	e.RunParallel("maximal policy", func(t *testing.T, e *kit.Env) {
		testMaximalPolicy(t, kit.NewWorkspaceClient(e, "policy-provider").ForTest(t), kit.NewWorkspaceClient(e, "policy-consumer").ForTest(t))
	})
}

func testBinding(t *testing.T, e *kit.Env) {
	provider, one, two := kit.NewWorkspaceClient(e, "bind-provider").ForTest(t), kit.NewWorkspaceClient(e, "bind-one").ForTest(t), kit.NewWorkspaceClient(e, "bind-two").ForTest(t)
	schema := provider.CreateSchema("v1", "widgets", "size")
	identity := provider.CreateExport("widgets", schema)
	bound := one.BindReady("widgets", provider, "widgets")
	require.Equal(t, "Bound", kit.Field(bound, "status", "phase"))
	require.Equal(t, map[string]any{
		"group": "example.org", "resource": "widgets", "storageVersions": []any{"v1"},
		"schema": map[string]any{"name": schema, "UID": string(provider.Get(kit.APIsV1Alpha1 + "apiresourceschemas/" + schema).GetUID()), "identityHash": identity},
	}, kit.Field(bound, "status", "boundResources").([]any)[0])
	lc := one.Get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster")
	require.Contains(t, lc.GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `"widgets.example.org":{"n":"widgets"}`)

	// All features of an API, only where it is bound.
	one.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	require.EqualValues(t, 1, kit.Field(one.Get(kit.WidgetsPath+"/a"), "spec", "size"))
	one.Patch(kit.WidgetsPath+"/a/status", `{"status":{"ok":true}}`)
	require.Equal(t, true, kit.Field(one.Get(kit.WidgetsPath+"/a"), "status", "ok"))
	require.Contains(t, fmt.Sprint(one.Get("/apis/example.org/v1").Object), "widgets/status")
	require.Contains(t, fmt.Sprint(one.Get("/openapi/v3/apis/example.org/v1").Object), "size")
	two.RequireCode(http.StatusNotFound, http.MethodGet, kit.WidgetsPath, "")
	provider.RequireCode(http.StatusNotFound, http.MethodGet, kit.WidgetsPath, "") // exporting an API does not serve it to the provider

	// Wildcard requests with the identity.
	two.BindReady("widgets", provider, "widgets")
	two.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 2))
	all := kit.WorkspaceClient{Env: e, Config: one.Config, ClusterName: "*"}.ForTest(t)
	list := all.Get("/apis/example.org/v1/widgets:" + identity)
	require.Len(t, kit.Field(list, "items"), 2)
	all.RequireCode(http.StatusNotFound, http.MethodGet, "/apis/example.org/v1/widgets:"+strings.Repeat("0", 64), "")
	all.RequireCode(http.StatusNotFound, http.MethodGet, "/apis/example.org/v1/widgets", "") // only metadata is served without an identity

	// Consumers keep APIs that the provider removes.
	provider.Delete(kit.APIsV1Alpha2 + "apiexports/widgets")
	provider.Delete(kit.APIsV1Alpha1 + "apiresourceschemas/" + schema)
	one.UntilBinding("widgets", "APIExportValid", "False APIExportNotFound")
	require.Equal(t, "True <nil>", kit.Condition(one.Get(kit.APIsV1Alpha2+"apibindings/widgets"), "Ready"))
	one.Create(kit.WidgetsPath, "%s", kit.Widget("b", "size", 3))

	// The deletion of the binding deletes the objects, and waits for their finalizers.
	one.Patch(kit.WidgetsPath+"/b", `{"metadata":{"finalizers":["example.org/wait"]}}`)
	one.Delete(kit.APIsV1Alpha2 + "apibindings/widgets")
	waiting := one.UntilBinding("widgets", "BindingResourceDeleteSuccess", "False SomeFinalizersRemain")
	require.Contains(t, fmt.Sprint(kit.Field(waiting, "status", "conditions")), "example.org/wait has 1 of widgets.example.org")
	one.RequireCode(http.StatusForbidden, http.MethodPost, kit.WidgetsPath, kit.Widget("c", "size", 4))
	require.Contains(t, fmt.Sprint(one.Get("/apis/example.org/v1").Object), "widgets/status", "discovery must list resources of remaining objects")
	require.NotNil(t, one.Get(kit.WidgetsPath+"/b").GetDeletionTimestamp())
	one.Patch(kit.WidgetsPath+"/b", `{"metadata":{"finalizers":null}}`)
	one.UntilDeleted(kit.APIsV1Alpha2 + "apibindings/widgets")
	one.UntilCode(http.StatusNotFound, http.MethodGet, kit.WidgetsPath, "") // the index is updated by informers
	lc = one.Get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster")
	require.NotContains(t, lc.GetAnnotations()["internal.apis.kcp.io/resource-bindings"], "widgets")
	require.EqualValues(t, 2, kit.Field(two.Get(kit.WidgetsPath+"/a"), "spec", "size"), "other consumers must keep their objects")
}

// testBuiltInNames checks that built-in resources must not be bound. testConflicts covers other names.
func testBuiltInNames(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "names-provider").ForTest(t), kit.NewWorkspaceClient(e, "names-consumer").ForTest(t)
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":"v1.leases.coordination.k8s.io","annotations":{"api-approved.kubernetes.io":"https://example.org/approved"}},"spec":{"group":"coordination.k8s.io","scope":"Namespaced","names":{"plural":"leases","singular":"lease","kind":"Lease","listKind":"LeaseList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object"}}]}}`)
	provider.CreateExport("builtin", "v1.leases.coordination.k8s.io")
	k.Create("/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"metadata":{"name":"a"}}`)
	k.Bind("builtin", provider, "builtin")
	k.UntilBinding("builtin", "InitialBindingCompleted", "False NamingConflicts")
	k.DeleteAndWait(kit.APIsV1Alpha2 + "apibindings/builtin")
}

// testBindingEvolution checks that bindings follow their export, and keep resources that it drops.
func testBindingEvolution(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "evolution-provider").ForTest(t), kit.NewWorkspaceClient(e, "evolution-consumer").ForTest(t)
	// The schema and the identity may be created after the binding.
	provider.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":"e"},"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v1.widgets.example.org","storage":{"crd":{}}}],"identity":{"secretRef":{"namespace":"default","name":"late"}}}}`)
	k.Bind("e", provider, "e")
	k.UntilBinding("e", "APIExportValid", "False MissingIdentityHash")
	provider.Create("/api/v1/namespaces/default/secrets", `{"metadata":{"name":"late"},"stringData":{"key":"mine"}}`)
	k.UntilBinding("e", "APIExportValid", "False InternalError")
	provider.CreateSchema("v1", "widgets", "size")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	provider.CreateSchema("v2", "widgets", "weight")
	provider.CreateSchema("v1", "gadgets", "size")
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"metadata":{"annotations":{"extra.apis.kcp.io/note":"hello","other":"x"}},"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v2.widgets.example.org","storage":{"crd":{}}},{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}}]}}`)
	k.UntilCode(http.StatusOK, http.MethodGet, "/apis/example.org/v1/gadgets", "")
	k.Eventually("fields that the new schema does not have are removed", func() bool { return kit.Field(k.Get(kit.WidgetsPath+"/a"), "spec", "size") == nil })
	k.Create(kit.WidgetsPath, "%s", kit.Widget("b", "weight", 7))
	bound := k.Get(kit.APIsV1Alpha2 + "apibindings/e")
	require.Equal(t, "hello", bound.GetAnnotations()["extra.apis.kcp.io/note"])
	require.NotContains(t, bound.GetAnnotations(), "other")

	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"metadata":{"annotations":{"extra.apis.kcp.io/note":null}},"spec":{"resources":[{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}}]}}`)
	k.Eventually("the annotation is removed", func() bool {
		return k.Get(kit.APIsV1Alpha2 + "apibindings/e").GetAnnotations()["extra.apis.kcp.io/note"] == ""
	})
	k.Create(kit.WidgetsPath, "%s", kit.Widget("c", "weight", 8))
	require.Len(t, kit.Field(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "status", "boundResources"), 2)
}

// testTakingOver checks that another binding of the same schema and identity takes over the objects if the first one is deleted.
func testTakingOver(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	schema := provider.CreateSchema("v1", "widgets", "size")
	provider.CreateExport("one", schema)
	k.BindPathReady("first", provider.ClusterName, "one")
	made := k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	// Bind the export twice.
	k.Bind("second", provider, "one")
	k.UntilBinding("second", "InitialBindingCompleted", "False NamingConflicts")
	k.Delete(kit.APIsV1Alpha2 + "apibindings/first")
	k.UntilBinding("second", "Ready", "True <nil>")
	after := k.Get(kit.WidgetsPath + "/a")
	require.Equal(t, made.GetUID(), after.GetUID())
	require.Equal(t, made.GetResourceVersion(), after.GetResourceVersion())

	// Bindings that wait to take over, but can never be bound, do not keep objects.
	k.Define("example.org", "gadgets", "Gadget", "v1")
	provider.CreateSchema("v1", "gadgets", "size")
	provider.Patch(kit.APIsV1Alpha2+"apiexports/one", `{"spec":{"resources":[{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}},{"group":"example.org","name":"widgets","schema":"v1.widgets.example.org","storage":{"crd":{}}}]}}`)
	k.UntilBinding("second", "BindingUpToDate", "False NamingConflicts")
	k.Bind("third", provider, "one")
	k.UntilBinding("third", "InitialBindingCompleted", "False NamingConflicts")
	for _, name := range []string{"second", "third"} {
		k.DeleteAndWait(kit.APIsV1Alpha2 + "apibindings/" + name)
	}
	k.Delete(kit.DefinitionsPath + "/gadgets.example.org")
	k.BindReady("fourth", provider, "one")
	require.Empty(t, kit.ResourceVersions(k, kit.WidgetsPath))
}

// testSharedIdentity checks two exports with the same identity and schema: one takes over the objects of the other when that binding
// is deleted, including its virtual workspace. An export with another schema must get none of them.
func testSharedIdentity(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	provider.Create("/api/v1/namespaces/default/secrets", `{"metadata":{"name":"shared"},"stringData":{"key":"of all of them"}}`)
	schema, another := provider.CreateSchema("v1", "widgets", "size"), provider.CreateSchema("v2", "widgets", "size")
	for name, offered := range map[string]string{"one": schema, "two": schema, "three": another} {
		provider.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":%q},"spec":{"identity":{"secretRef":{"namespace":"default","name":"shared"}},"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}}]}}`, name, offered)
	}
	bound := k.BindPathReady("first", provider.ClusterName, "one")
	for _, name := range []string{"a", "b"} {
		k.Create(kit.WidgetsPath, "%s", kit.Widget(name, "size", 1))
	}
	made := kit.ResourceVersions(k, kit.WidgetsPath)
	require.Len(t, made, 2)
	k.BindPath(http.StatusCreated, "second", provider.ClusterName, "two")
	k.UntilBinding("second", "InitialBindingCompleted", "False NamingConflicts")
	status := func(export string) int {
		code, _ := provider.ThroughExport(export, k.ClusterName).TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code
	}
	k.Eventually("the virtual workspace of the first export contains the objects", func() bool { return status("one") == http.StatusOK })
	require.Equal(t, http.StatusForbidden, status("two"), "the virtual workspace of the other export must not contain them")

	k.Delete(kit.APIsV1Alpha2 + "apibindings/first")
	after := k.UntilBinding("second", "Ready", "True <nil>")
	k.UntilDeleted(kit.APIsV1Alpha2 + "apibindings/first")
	require.Equal(t, made, kit.ResourceVersions(k, kit.WidgetsPath), "the objects must not be written")
	require.Equal(t, kit.Field(bound, "status", "boundResources"), kit.Field(after, "status", "boundResources"))
	require.Contains(t, k.Get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `"widgets.example.org":{"n":"second"}`)
	k.Eventually("only the virtual workspace of the other export contains the objects", func() bool {
		return status("two") == http.StatusOK && status("one") == http.StatusForbidden
	})
	require.Equal(t, made, kit.ResourceVersions(provider.ThroughExport("two", k.ClusterName), kit.WidgetsPath))
	k.Patch(kit.WidgetsPath+"/a", `{"spec":{"size":2}}`)

	// Another schema, with the same resource and identity.
	k.BindPath(http.StatusCreated, "third", provider.ClusterName, "three")
	k.UntilBinding("third", "InitialBindingCompleted", "False NamingConflicts")
	k.Delete(kit.APIsV1Alpha2 + "apibindings/second")
	k.UntilBinding("third", "Ready", "True <nil>")
	require.Empty(t, kit.ResourceVersions(k, kit.WidgetsPath), "objects without a binding must be deleted")
}

// testMaximalPolicy checks that the provider limits the permissions of consumers.
func testMaximalPolicy(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	const rules = kit.RBACPath
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	provider.Create(rules+"clusterroles", `{"metadata":{"name":"read"},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":["get","list"]}]}`)
	provider.BindGroup("read", "read", "apis.kcp.io:binding:system:authenticated")
	k.BindRole("all", "cluster-admin", "user-1")
	k.BindPathReady("e", provider.ClusterName, "e")
	tenant := k.As("user-1-token")
	tenant.UntilCode(http.StatusOK, http.MethodGet, kit.WidgetsPath, "")
	tenant.Eventually("the policy denies writes of the tenant", func() bool {
		code, message := tenant.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("a", "size", 1))
		return code == http.StatusForbidden && strings.Contains(message, "access not permitted by maximal permission policy")
	})
	message := tenant.RequireCode(http.StatusForbidden, http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
	require.Contains(t, message, "access not permitted by maximal permission policy")
	// Other names of the resource must not be served, because the policy would not apply to them.
	for _, name := range []string{":", "::", ":" + strings.Repeat("0", 64), "%3a"} {
		tenant.RequireCode(http.StatusNotFound, http.MethodPost, kit.WidgetsPath+name, kit.Widget("a", "size", 1))
		tenant.RequireCode(http.StatusNotFound, http.MethodPatch, kit.APIsV1Alpha2+"apibindings"+name+"/e/status", `{"status":{"boundResources":[]}}`)
	}
	tenant.RequireCode(http.StatusForbidden, http.MethodPatch, kit.APIsV1Alpha2+"apibindings/e/status", `{"status":{"boundResources":[]}}`)
	provider.Allow("write", "apis.kcp.io:binding:user-1", `{"apiGroups":["example.org"],"resources":["widgets"],"verbs":["create","update","patch"]}`)
	tenant.UntilCode(http.StatusCreated, http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
	tenant.RequireCode(http.StatusForbidden, http.MethodDelete, kit.WidgetsPath+"/a", "")
	denied := tenant.Do(http.StatusForbidden, http.MethodPatch, kit.WidgetsPath+"/a", `{"metadata":`+kit.AbsentOwner+`}`)
	require.Contains(t, kit.Field(denied, "message"), "requires the verb delete")
	tenant.Patch(kit.WidgetsPath+"/a", `{"metadata":{"labels":{"mine":"x"}}}`)
	testPolicyForServiceAccounts(t, provider, k)
	// Without the policy only the rules of the consumer apply.
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":null}}`)
	tenant.UntilCode(http.StatusOK, http.MethodDelete, kit.WidgetsPath+"/a", "")
}

// testPolicyForServiceAccounts checks that the provider's rules match service accounts of consumers only by the name that contains
// their logical cluster.
func testPolicyForServiceAccounts(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	k.Create(accounts, `{"metadata":{"name":"robot"}}`)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"robot"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"ServiceAccount","namespace":"default","name":"robot"}]}`)
	token := k.Create(accounts+"/robot/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	robot := k.As(fmt.Sprint(kit.Field(token, "status", "token")))
	robot.UntilCode(http.StatusOK, http.MethodGet, kit.WidgetsPath, "")
	grant := func(name, user string) {
		provider.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:%s"}]}`, name, user)
	}
	grant("robot-without-a-place", "system:serviceaccount:default:robot")
	grant("robot-of-the-provider", "system:kcp:serviceaccount:"+provider.ClusterName+":default:robot")
	grant("marker", "user-2")
	k.BindRole("marker", "cluster-admin", "user-2")
	other := k.As("user-2-token")
	other.UntilCode(http.StatusCreated, http.MethodPost, kit.WidgetsPath, kit.Widget("marker", "size", 1))
	message := robot.RequireCode(http.StatusForbidden, http.MethodPost, kit.WidgetsPath, kit.Widget("robots", "size", 1))
	require.Contains(t, message, "access not permitted by maximal permission policy")
	grant("robot", "system:kcp:serviceaccount:"+k.ClusterName+":default:robot")
	robot.UntilCode(http.StatusCreated, http.MethodPost, kit.WidgetsPath, kit.Widget("robots", "size", 1))
	robot.RequireCode(http.StatusForbidden, http.MethodDelete, kit.WidgetsPath+"/robots", "")
}

// testBoundContent checks that objects of bound APIs are counted by quotas, and deleted with their namespace and logical cluster.
func testBoundContent(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "content-provider").ForTest(t), kit.NewWorkspaceClient(e, "content-consumer").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.BindReady("e", provider, "e")
	k.Create("/api/v1/namespaces", `{"metadata":{"name":"other"}}`)
	other := strings.Replace(kit.WidgetsPath, "default", "other", 1)
	k.Create("/api/v1/namespaces/other/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"count/widgets.example.org":"1"}}}`)
	k.Eventually("the quota is counted", func() bool {
		return fmt.Sprint(kit.Field(k.Get("/api/v1/namespaces/other/resourcequotas/q"), "status", "used")) == "map[count/widgets.example.org:0]"
	})
	k.Create(other, "%s", kit.Widget("a", "size", 1))
	// Admission uses an informer, which may lag.
	k.Eventually("the quota is exceeded", func() bool {
		code, message := k.TryDo(http.MethodPost, other, kit.Widget("b", "size", 1))
		if code == http.StatusCreated {
			k.Delete(other + "/b")
		}
		return code == http.StatusForbidden && strings.Contains(message, "exceeded quota: q")
	})
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	// Metadata without the identity, including objects of a definition.
	provider.Create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	provider.Create(kit.WidgetsPath, "%s", kit.Widget("own", "size", 1))
	inOne := func(path string) (n int) {
		response := kit.RequireCode(t, k.Config, kit.Request{Path: "/clusters/*" + path, Header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}}}, http.StatusOK)
		for _, cluster := range []string{provider.ClusterName, k.ClusterName} {
			n += strings.Count(string(response), `"kcp.io/cluster":"`+cluster+`"`)
		}
		require.NotContains(t, string(response), "internal.apis.kcp.io/identity")
		return n
	}
	require.Equal(t, 3, inOne("/apis/example.org/v1/widgets"))
	require.Equal(t, 2, inOne("/apis/example.org/v1/widgets:"+identity))

	k.DeleteAndWait("/api/v1/namespaces/other")
	require.Equal(t, 1, inOne("/apis/example.org/v1/widgets:"+identity))

	root := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "root"}.ForTest(t)
	root.DeleteAndWait("/apis/tenancy.kcp.io/v1alpha1/workspaces/content-consumer")
	all := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "*"}.ForTest(t)
	all.UntilCode(http.StatusNotFound, http.MethodGet, "/apis/example.org/v1/widgets:"+identity, "") // the index is updated by informers
}
