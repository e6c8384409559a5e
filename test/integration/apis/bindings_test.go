package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestBinding: what one logical cluster exports is an API of those that bind it.
func TestBinding(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.RunParallel("life", func(t *testing.T, e *kit.Env) { testBinding(t, e) })
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
	e.RunParallel("without a provider", func(t *testing.T, e *kit.Env) { testProviderGoes(t, e, 0) })
	e.RunParallel("hooks", func(t *testing.T, e *kit.Env) { testProvidersHooks(t, e) })
	e.RunParallel("hooks of writers", func(t *testing.T, e *kit.Env) {
		testHooksOfWriters(t, "near-judge", kit.NewWorkspaceClient(e, "near-judge").ForTest(t), kit.NewWorkspaceClient(e, "near-judged").ForTest(t))
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
	one.Bind("widgets", provider, "widgets")
	bound := one.UntilBinding("widgets", "Ready", "True <nil>")
	require.Equal(t, "Bound", kit.Field(bound, "status", "phase"))
	require.Equal(t, map[string]any{
		"group": "example.org", "resource": "widgets", "storageVersions": []any{"v1"},
		"schema": map[string]any{"name": schema, "UID": string(provider.Get(kit.APIsV1Alpha1 + "apiresourceschemas/" + schema).GetUID()), "identityHash": identity},
	}, kit.Field(bound, "status", "boundResources").([]any)[0])
	lc := one.Get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster")
	require.Contains(t, lc.GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `"widgets.example.org":{"n":"widgets"}`)

	// A full API, and only where it is bound.
	one.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	require.EqualValues(t, 1, kit.Field(one.Get(kit.WidgetsPath+"/a"), "spec", "size"))
	one.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/a/status", `{"status":{"ok":true}}`)
	require.Equal(t, true, kit.Field(one.Get(kit.WidgetsPath+"/a"), "status", "ok"))
	require.Contains(t, fmt.Sprint(one.Get("/apis/example.org/v1").Object), "widgets/status")
	require.Contains(t, fmt.Sprint(one.Get("/openapi/v3/apis/example.org/v1").Object), "size")
	code, _ := two.TryDo(http.MethodGet, kit.WidgetsPath, "")
	require.Equal(t, http.StatusNotFound, code)
	code, _ = provider.TryDo(http.MethodGet, kit.WidgetsPath, "")
	require.Equal(t, http.StatusNotFound, code, "a provider does not have what it exports")

	// All of them at once, by identity.
	two.Bind("widgets", provider, "widgets")
	two.UntilBinding("widgets", "Ready", "True <nil>")
	two.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 2))
	all := kit.WorkspaceClient{Env: e, Config: one.Config, ClusterName: "*"}.ForTest(t)
	list := all.Get("/apis/example.org/v1/widgets:" + identity)
	require.Len(t, kit.Field(list, "items"), 2)
	code, _ = all.TryDo(http.MethodGet, "/apis/example.org/v1/widgets:"+strings.Repeat("0", 64), "")
	require.Equal(t, http.StatusNotFound, code)
	code, _ = all.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
	require.Equal(t, http.StatusNotFound, code, "without an identity there is metadata only")

	// What the provider takes away stays with those who have it.
	provider.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apiexports/widgets", "")
	provider.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha1+"apiresourceschemas/"+schema, "")
	one.UntilBinding("widgets", "APIExportValid", "False APIExportNotFound")
	require.Equal(t, "True <nil>", kit.Condition(one.Get(kit.APIsV1Alpha2+"apibindings/widgets"), "Ready"))
	one.Create(kit.WidgetsPath, "%s", kit.Widget("b", "size", 3))

	// Deleting the binding deletes the objects, and waits for their finalizers.
	one.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/b", `{"metadata":{"finalizers":["example.org/wait"]}}`)
	one.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/widgets", "")
	waiting := one.UntilBinding("widgets", "BindingResourceDeleteSuccess", "False SomeFinalizersRemain")
	require.Contains(t, fmt.Sprint(kit.Field(waiting, "status", "conditions")), "example.org/wait has 1 of widgets.example.org")
	code, says := one.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("c", "size", 4))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, fmt.Sprint(one.Get("/apis/example.org/v1").Object), "widgets/status", "clients find what has finalizers")
	require.NotNil(t, one.Get(kit.WidgetsPath+"/b").GetDeletionTimestamp())
	one.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/b", `{"metadata":{"finalizers":null}}`)
	one.Eventually("the binding is gone", func() bool {
		code, _ := one.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/widgets", "")
		return code == http.StatusNotFound
	})
	one.Eventually("nothing is served any more", func() bool { // the index hears of it as informers do
		code, _ := one.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code == http.StatusNotFound
	})
	lc = one.Get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster")
	require.NotContains(t, lc.GetAnnotations()["internal.apis.kcp.io/resource-bindings"], "widgets")
	require.EqualValues(t, 2, kit.Field(two.Get(kit.WidgetsPath+"/a"), "spec", "size"), "others keep theirs")
}

// testBuiltInNames: what every logical cluster has cannot be had again. Names that bindings and definitions compete for
// are in testConflicts.
func testBuiltInNames(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "names-provider").ForTest(t), kit.NewWorkspaceClient(e, "names-consumer").ForTest(t)
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":"v1.leases.coordination.k8s.io","annotations":{"api-approved.kubernetes.io":"https://example.org/approved"}},"spec":{"group":"coordination.k8s.io","scope":"Namespaced","names":{"plural":"leases","singular":"lease","kind":"Lease","listKind":"LeaseList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object"}}]}}`)
	provider.CreateExport("builtin", "v1.leases.coordination.k8s.io")
	k.Create("/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"metadata":{"name":"a"}}`)
	k.Bind("builtin", provider, "builtin")
	k.UntilBinding("builtin", "InitialBindingCompleted", "False NamingConflicts")
	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/builtin", "")
	k.Eventually("the binding is deleted, although the built-in objects cannot be read as custom resources", func() bool {
		code, _ := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/builtin", "")
		return code == http.StatusNotFound
	})
}

// testBindingEvolution: bindings follow their export, and keep what it drops.
func testBindingEvolution(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "evolution-provider").ForTest(t), kit.NewWorkspaceClient(e, "evolution-consumer").ForTest(t)
	// The schema, and the identity, may come late.
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
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"metadata":{"annotations":{"extra.apis.kcp.io/note":"hello","other":"x"}},"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v2.widgets.example.org","storage":{"crd":{}}},{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}}]}}`)
	k.Eventually("the new schema is served", func() bool {
		code, _ := k.TryDo(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		return code == http.StatusOK
	})
	k.Eventually("what the new schema does not have is not shown", func() bool { return kit.Field(k.Get(kit.WidgetsPath+"/a"), "spec", "size") == nil })
	k.Create(kit.WidgetsPath, "%s", kit.Widget("b", "weight", 7))
	bound := k.Get(kit.APIsV1Alpha2 + "apibindings/e")
	require.Equal(t, "hello", bound.GetAnnotations()["extra.apis.kcp.io/note"])
	require.NotContains(t, bound.GetAnnotations(), "other")

	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"metadata":{"annotations":{"extra.apis.kcp.io/note":null}},"spec":{"resources":[{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}}]}}`)
	k.Eventually("the annotation is taken away", func() bool {
		return k.Get(kit.APIsV1Alpha2 + "apibindings/e").GetAnnotations()["extra.apis.kcp.io/note"] == ""
	})
	k.Create(kit.WidgetsPath, "%s", kit.Widget("c", "weight", 8))
	require.Len(t, kit.Field(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "status", "boundResources"), 2)
}

// testTakingOver: another binding of the same schema and identity has the objects when
// the first one goes.
func testTakingOver(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	schema := provider.CreateSchema("v1", "widgets", "size")
	provider.CreateExport("one", schema)
	k.BindPath(http.StatusCreated, "first", provider.ClusterName, "one")
	k.UntilBinding("first", "Ready", "True <nil>")
	made := k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	// The same export, bound twice.
	k.Bind("second", provider, "one")
	k.UntilBinding("second", "InitialBindingCompleted", "False NamingConflicts")
	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/first", "")
	k.UntilBinding("second", "Ready", "True <nil>")
	after := k.Get(kit.WidgetsPath + "/a")
	require.Equal(t, made.GetUID(), after.GetUID())
	require.Equal(t, made.GetResourceVersion(), after.GetResourceVersion())

	// Who waits to take it over and can never bind leaves nothing behind either.
	k.Define("example.org", "gadgets", "Gadget", "v1")
	provider.CreateSchema("v1", "gadgets", "size")
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/one", `{"spec":{"resources":[{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}},{"group":"example.org","name":"widgets","schema":"v1.widgets.example.org","storage":{"crd":{}}}]}}`)
	k.UntilBinding("second", "BindingUpToDate", "False NamingConflicts")
	k.Bind("third", provider, "one")
	k.UntilBinding("third", "InitialBindingCompleted", "False NamingConflicts")
	for _, name := range []string{"second", "third"} {
		k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/"+name, "")
		k.Eventually("binding "+name+" is gone", func() bool {
			code, _ := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/"+name, "")
			return code == http.StatusNotFound
		})
	}
	k.Do(http.StatusOK, http.MethodDelete, kit.DefinitionsPath+"/gadgets.example.org", "")
	k.Bind("fourth", provider, "one")
	k.UntilBinding("fourth", "Ready", "True <nil>")
	require.Empty(t, resourceVersions(k, kit.WidgetsPath))
}

// testSharedIdentity: of two exports that share an identity and offer the same schema, one has what
// is bound to the other when that binding goes, and its view shows it; whose schema is another one
// has nothing of it.
func testSharedIdentity(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	provider.Create("/api/v1/namespaces/default/secrets", `{"metadata":{"name":"shared"},"stringData":{"key":"of all of them"}}`)
	schema, another := provider.CreateSchema("v1", "widgets", "size"), provider.CreateSchema("v2", "widgets", "size")
	for name, offered := range map[string]string{"one": schema, "two": schema, "three": another} {
		provider.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":%q},"spec":{"identity":{"secretRef":{"namespace":"default","name":"shared"}},"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}}]}}`, name, offered)
	}
	k.BindPath(http.StatusCreated, "first", provider.ClusterName, "one")
	bound := k.UntilBinding("first", "Ready", "True <nil>")
	for _, name := range []string{"a", "b"} {
		k.Create(kit.WidgetsPath, "%s", kit.Widget(name, "size", 1))
	}
	made := resourceVersions(k, kit.WidgetsPath)
	require.Len(t, made, 2)
	k.BindPath(http.StatusCreated, "second", provider.ClusterName, "two")
	k.UntilBinding("second", "InitialBindingCompleted", "False NamingConflicts")
	viewed := func(export string) int {
		code, _ := provider.ThroughExport(export, k.ClusterName).TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code
	}
	k.Eventually("the view of the first export has them", func() bool { return viewed("one") == http.StatusOK })
	require.Equal(t, http.StatusForbidden, viewed("two"), "and that of the other one nothing")

	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/first", "")
	after := k.UntilBinding("second", "Ready", "True <nil>")
	k.Eventually("the first one is gone", func() bool {
		code, _ := k.TryDo(http.MethodGet, kit.APIsV1Alpha2+"apibindings/first", "")
		return code == http.StatusNotFound
	})
	require.Equal(t, made, resourceVersions(k, kit.WidgetsPath), "the same objects, and nobody has written them")
	require.Equal(t, kit.Field(bound, "status", "boundResources"), kit.Field(after, "status", "boundResources"))
	require.Contains(t, k.Get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `"widgets.example.org":{"n":"second"}`)
	k.Eventually("they are in the view of the other export, and of no other", func() bool {
		return viewed("two") == http.StatusOK && viewed("one") == http.StatusForbidden
	})
	require.Equal(t, made, resourceVersions(provider.ThroughExport("two", k.ClusterName), kit.WidgetsPath))
	k.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/a", `{"spec":{"size":2}}`)

	// The schema is another one, though the resource and the identity are the same.
	k.BindPath(http.StatusCreated, "third", provider.ClusterName, "three")
	k.UntilBinding("third", "InitialBindingCompleted", "False NamingConflicts")
	k.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/second", "")
	k.UntilBinding("third", "Ready", "True <nil>")
	require.Empty(t, resourceVersions(k, kit.WidgetsPath), "what nobody takes over is deleted")
}

// testMaximalPolicy: the provider has a say in what consumers may do.
func testMaximalPolicy(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	const rules = kit.RBACPath
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	provider.Create(rules+"clusterroles", `{"metadata":{"name":"read"},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":["get","list"]}]}`)
	provider.Create(rules+"clusterrolebindings", `{"metadata":{"name":"read"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"read"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:system:authenticated"}]}`)
	k.Create(rules+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	k.BindPath(http.StatusCreated, "e", provider.ClusterName, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	tenant := k.As("user-1-token")
	tenant.Eventually("the tenant may read", func() bool {
		code, _ := tenant.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code == http.StatusOK
	})
	tenant.Eventually("the tenant may not write", func() bool {
		code, says := tenant.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("a", "size", 1))
		return code == http.StatusForbidden && strings.Contains(says, "access not permitted by maximal permission policy")
	})
	code, says := tenant.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "access not permitted by maximal permission policy")
	// Nor by another name of the same, for which the policy is not asked.
	for _, name := range []string{":", "::", ":" + strings.Repeat("0", 64), "%3a"} {
		code, says = tenant.TryDo(http.MethodPost, kit.WidgetsPath+name, kit.Widget("a", "size", 1))
		require.Equal(t, http.StatusNotFound, code, "%s: %s", name, says)
		code, says = tenant.TryDo(http.MethodPatch, kit.APIsV1Alpha2+"apibindings"+name+"/e/status", `{"status":{"boundResources":[]}}`)
		require.Equal(t, http.StatusNotFound, code, "%s: %s", name, says)
	}
	code, says = tenant.TryDo(http.MethodPatch, kit.APIsV1Alpha2+"apibindings/e/status", `{"status":{"boundResources":[]}}`)
	require.Equal(t, http.StatusForbidden, code, says)
	provider.Create(rules+"clusterroles", `{"metadata":{"name":"write"},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":["create","update","patch"]}]}`)
	provider.Create(rules+"clusterrolebindings", `{"metadata":{"name":"write"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:user-1"}]}`)
	tenant.Eventually("the tenant may write", func() bool {
		code, _ := tenant.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("a", "size", 1))
		return code == http.StatusCreated
	})
	code, _ = tenant.TryDo(http.MethodDelete, kit.WidgetsPath+"/a", "")
	require.Equal(t, http.StatusForbidden, code)
	code, says = writeAs(tenant, http.MethodPatch, kit.WidgetsPath+"/a", "merge-patch+json", `{"metadata":`+absentOwner+`}`)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "requires the verb delete")
	tenant.Do(http.StatusOK, http.MethodPatch, kit.WidgetsPath+"/a", `{"metadata":{"labels":{"mine":"x"}}}`)
	testPolicyForServiceAccounts(t, provider, k)
	// Without the policy the consumer decides alone.
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":null}}`)
	tenant.Eventually("the tenant may delete", func() bool {
		code, _ := tenant.TryDo(http.MethodDelete, kit.WidgetsPath+"/a", "")
		return code == http.StatusOK
	})
}

// testPolicyForServiceAccounts: the provider knows the service accounts of consumers by a name that
// says where they are, and by no other.
func testPolicyForServiceAccounts(t *testing.T, provider, k kit.WorkspaceClient) {
	t.Helper()
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	k.Create(accounts, `{"metadata":{"name":"robot"}}`)
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"robot"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"ServiceAccount","namespace":"default","name":"robot"}]}`)
	token := k.Create(accounts+"/robot/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	robot := k.As(fmt.Sprint(kit.Field(token, "status", "token")))
	robot.Eventually("it may read, as all who are authenticated", func() bool {
		code, _ := robot.TryDo(http.MethodGet, kit.WidgetsPath, "")
		return code == http.StatusOK
	})
	grant := func(name, user string) {
		provider.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:%s"}]}`, name, user)
	}
	grant("robot-without-a-place", "system:serviceaccount:default:robot")
	grant("robot-of-the-provider", "system:kcp:serviceaccount:"+provider.ClusterName+":default:robot")
	grant("marker", "user-2")
	k.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"marker"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`)
	other := k.As("user-2-token")
	other.Eventually("the bindings before it are known, too", func() bool {
		code, _ := other.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("marker", "size", 1))
		return code == http.StatusCreated
	})
	code, says := robot.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("robots", "size", 1))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "access not permitted by maximal permission policy")
	grant("robot", "system:kcp:serviceaccount:"+k.ClusterName+":default:robot")
	robot.Eventually("it may write", func() bool {
		code, _ := robot.TryDo(http.MethodPost, kit.WidgetsPath, kit.Widget("robots", "size", 1))
		return code == http.StatusCreated
	})
	code, says = robot.TryDo(http.MethodDelete, kit.WidgetsPath+"/robots", "")
	require.Equal(t, http.StatusForbidden, code, says)
}

// testBoundContent: objects of bound APIs count in quotas, and go with their namespace
// and with their logical cluster.
func testBoundContent(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "content-provider").ForTest(t), kit.NewWorkspaceClient(e, "content-consumer").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.Bind("e", provider, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.Create("/api/v1/namespaces", `{"metadata":{"name":"other"}}`)
	other := strings.Replace(kit.WidgetsPath, "default", "other", 1)
	k.Create("/api/v1/namespaces/other/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"count/widgets.example.org":"1"}}}`)
	k.Eventually("the quota is known", func() bool {
		return fmt.Sprint(kit.Field(k.Get("/api/v1/namespaces/other/resourcequotas/q"), "status", "used")) == "map[count/widgets.example.org:0]"
	})
	k.Create(other, "%s", kit.Widget("a", "size", 1))
	// Admission counts by an informer, which may be behind.
	k.Eventually("the quota is full", func() bool {
		code, says := k.TryDo(http.MethodPost, other, kit.Widget("b", "size", 1))
		if code == http.StatusCreated {
			k.Do(http.StatusOK, http.MethodDelete, other+"/b", "")
		}
		return code == http.StatusForbidden && strings.Contains(says, "exceeded quota: q")
	})
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	// Metadata, without the identity, beside those of a definition.
	provider.Create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	provider.Create(kit.WidgetsPath, "%s", kit.Widget("own", "size", 1))
	inOne := func(path string) (n int) {
		code, answer := kit.Do(t, k.Config, kit.Request{Path: "/clusters/*" + path, Header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}}})
		require.Equal(t, http.StatusOK, code, "%s", answer)
		for _, cluster := range []string{provider.ClusterName, k.ClusterName} {
			n += strings.Count(string(answer), `"kcp.io/cluster":"`+cluster+`"`)
		}
		require.NotContains(t, string(answer), "internal.apis.kcp.io/identity")
		return n
	}
	require.Equal(t, 3, inOne("/apis/example.org/v1/widgets"))
	require.Equal(t, 2, inOne("/apis/example.org/v1/widgets:"+identity))

	k.Do(http.StatusOK, http.MethodDelete, "/api/v1/namespaces/other", "")
	k.Eventually("the namespace is gone", func() bool {
		code, _ := k.TryDo(http.MethodGet, "/api/v1/namespaces/other", "")
		return code == http.StatusNotFound
	})
	require.Equal(t, 1, inOne("/apis/example.org/v1/widgets:"+identity))

	root := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "root"}.ForTest(t)
	root.Do(http.StatusOK, http.MethodDelete, "/apis/tenancy.kcp.io/v1alpha1/workspaces/content-consumer", "")
	k.Eventually("the workspace is gone", func() bool {
		code, _ := root.TryDo(http.MethodGet, "/apis/tenancy.kcp.io/v1alpha1/workspaces/content-consumer", "")
		return code == http.StatusNotFound
	})
	all := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "*"}.ForTest(t)
	all.Eventually("nobody has the identity", func() bool { // the index hears of it as informers do
		code, _ := all.TryDo(http.MethodGet, "/apis/example.org/v1/widgets:"+identity, "")
		return code == http.StatusNotFound
	})
}
