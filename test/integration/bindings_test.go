package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const widgets = "/apis/example.org/v1/namespaces/default/widgets"

// export makes an export of schemas, named as its resources are, and returns its identity.
func (k apiKinds) export(name string, schemas ...string) string {
	k.t.Helper()
	var resources []string
	for _, schema := range schemas {
		parts := strings.SplitN(schema, ".", 3)
		resources = append(resources, fmt.Sprintf(`{"group":%q,"name":%q,"schema":%q,"storage":{"crd":{}}}`, strings.TrimPrefix(parts[2], "core"), parts[1], schema))
	}
	k.create(apisV2+"apiexports", `{"metadata":{"name":%q},"spec":{"resources":[%s]}}`, name, strings.Join(resources, ","))
	identity := ""
	k.eventually("the export has an identity", func() bool {
		identity, _ = field(k.get(apisV2+"apiexports/"+name), "status", "identityHash").(string)
		return identity != ""
	})
	return identity
}

// schema makes a schema of a resource of example.org, whose objects have a field.
func (k apiKinds) schema(prefix, plural, field string) string {
	k.t.Helper()
	kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
	name := prefix + "." + plural + ".example.org"
	k.create(apisV1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%q:{"type":"integer"}}},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}]}}`,
		name, plural, plural[:len(plural)-1], kind, kind+"List", field)
	return name
}

// bind makes a binding to an export of a provider.
func (k apiKinds) bind(name string, provider apiKinds, export string) {
	k.t.Helper()
	k.create(apisV2+"apibindings", `{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`, name, provider.cluster, export)
}

// until waits until a condition of a binding has a status and reason.
func (k apiKinds) until(binding, kind, want string) *unstructured.Unstructured {
	k.t.Helper()
	var b *unstructured.Unstructured
	k.eventually(fmt.Sprintf("%s of binding %s is %s", kind, binding, want), func() bool {
		b = k.get(apisV2 + "apibindings/" + binding)
		return condition(b, kind) == want
	})
	return b
}

// status sends a request and returns its code and what it says.
func (k apiKinds) status(method, path, body string) (code int, says string) {
	k.t.Helper()
	code, answer := do(k.t, k.config, call{method: method, path: k.view + "/clusters/" + k.cluster + path, body: body, header: http.Header{"Content-Type": {"application/json"}}})
	return code, string(answer)
}

func widget(name, field string, value int) string {
	return fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":%q},"spec":{%q:%d}}`, name, field, value)
}

// TestBinding: what one logical cluster exports is an API of those that bind it.
func TestBinding(t *testing.T) {
	e := newEnv(t, two.Get(t))
	t.Run("life", func(t *testing.T) { testBinding(t, e) })
	t.Run("names", func(t *testing.T) { testBindingNames(t, e) })
	t.Run("conflicts", func(t *testing.T) { testConflicts(t, e) })
	t.Run("evolution", func(t *testing.T) { testBindingEvolution(t, e) })
	t.Run("taking over", func(t *testing.T) {
		testTakingOver(t, newAPIKinds(e, "over-provider").in(t), newAPIKinds(e, "over-consumer").in(t))
	})
	t.Run("taking over from another export", func(t *testing.T) {
		testSharedIdentity(t, newAPIKinds(e, "shared-provider").in(t), newAPIKinds(e, "shared-consumer").in(t))
	})
	t.Run("content", func(t *testing.T) { testBoundContent(t, e) })
	t.Run("watches", func(t *testing.T) { testBoundWatches(t, e) })
	t.Run("without a provider", func(t *testing.T) { testProviderGoes(t, e, 0) })
	t.Run("hooks", func(t *testing.T) { testProvidersHooks(t, e) })
	t.Run("hooks of writers", func(t *testing.T) {
		testHooksOfWriters(t, "near-judge", newAPIKinds(e, "near-judge").in(t), newAPIKinds(e, "near-judged").in(t))
	})
	t.Run("unbound while creating", func(t *testing.T) {
		testUnboundWhileCreating(t, newAPIKinds(e, "slow-provider").in(t), newAPIKinds(e, "slow-consumer").in(t))
	})
	t.Run("conversion", func(t *testing.T) { testConversion(t, e) })
	t.Run("conversion by a webhook", func(t *testing.T) {
		testWebhookConversion(t, newAPIKinds(e, "webhook-provider").in(t), newAPIKinds(e, "webhook-consumer").in(t))
	})
	t.Run("maximal policy", func(t *testing.T) {
		testMaximalPolicy(t, newAPIKinds(e, "policy-provider").in(t), newAPIKinds(e, "policy-consumer").in(t))
	})
}

func testBinding(t *testing.T, e *env) {
	provider, one, two := newAPIKinds(e, "bind-provider").in(t), newAPIKinds(e, "bind-one").in(t), newAPIKinds(e, "bind-two").in(t)
	schema := provider.schema("v1", "widgets", "size")
	identity := provider.export("widgets", schema)
	one.bind("widgets", provider, "widgets")
	bound := one.until("widgets", "Ready", "True <nil>")
	require.Equal(t, "Bound", field(bound, "status", "phase"))
	require.Equal(t, map[string]any{
		"group": "example.org", "resource": "widgets", "storageVersions": []any{"v1"},
		"schema": map[string]any{"name": schema, "UID": string(provider.get(apisV1 + "apiresourceschemas/" + schema).GetUID()), "identityHash": identity},
	}, field(bound, "status", "boundResources").([]any)[0])
	lc := one.get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster")
	require.Contains(t, lc.GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `"widgets.example.org":{"n":"widgets"}`)

	// A full API, and only where it is bound.
	one.create(widgets, "%s", widget("a", "size", 1))
	require.EqualValues(t, 1, field(one.get(widgets+"/a"), "spec", "size"))
	one.ask(http.StatusOK, http.MethodPatch, widgets+"/a/status", `{"status":{"ok":true}}`)
	require.Equal(t, true, field(one.get(widgets+"/a"), "status", "ok"))
	require.Contains(t, fmt.Sprint(one.get("/apis/example.org/v1").Object), "widgets/status")
	require.Contains(t, fmt.Sprint(one.get("/openapi/v3/apis/example.org/v1").Object), "size")
	code, _ := two.status(http.MethodGet, widgets, "")
	require.Equal(t, http.StatusNotFound, code)
	code, _ = provider.status(http.MethodGet, widgets, "")
	require.Equal(t, http.StatusNotFound, code, "a provider does not have what it exports")

	// All of them at once, by identity.
	two.bind("widgets", provider, "widgets")
	two.until("widgets", "Ready", "True <nil>")
	two.create(widgets, "%s", widget("a", "size", 2))
	all := apiKinds{env: e, config: one.config, cluster: "*"}.in(t)
	list := all.get("/apis/example.org/v1/widgets:" + identity)
	require.Len(t, field(list, "items"), 2)
	code, _ = all.status(http.MethodGet, "/apis/example.org/v1/widgets:"+strings.Repeat("0", 64), "")
	require.Equal(t, http.StatusNotFound, code)
	code, _ = all.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
	require.Equal(t, http.StatusNotFound, code, "without an identity there is metadata only")

	// What the provider takes away stays with those who have it.
	provider.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/widgets", "")
	provider.ask(http.StatusOK, http.MethodDelete, apisV1+"apiresourceschemas/"+schema, "")
	one.until("widgets", "APIExportValid", "False APIExportNotFound")
	require.Equal(t, "True <nil>", condition(one.get(apisV2+"apibindings/widgets"), "Ready"))
	one.create(widgets, "%s", widget("b", "size", 3))

	// Deleting the binding deletes the objects, and waits for their finalizers.
	one.ask(http.StatusOK, http.MethodPatch, widgets+"/b", `{"metadata":{"finalizers":["example.org/wait"]}}`)
	one.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/widgets", "")
	waiting := one.until("widgets", "BindingResourceDeleteSuccess", "False SomeFinalizersRemain")
	require.Contains(t, fmt.Sprint(field(waiting, "status", "conditions")), "example.org/wait has 1 of widgets.example.org")
	code, says := one.status(http.MethodPost, widgets, widget("c", "size", 4))
	require.Equal(t, http.StatusForbidden, code, says)
	require.NotContains(t, fmt.Sprint(one.get("/apis").Object), "example.org")
	require.NotNil(t, one.get(widgets+"/b").GetDeletionTimestamp())
	one.ask(http.StatusOK, http.MethodPatch, widgets+"/b", `{"metadata":{"finalizers":null}}`)
	one.eventually("the binding is gone", func() bool {
		code, _ := one.status(http.MethodGet, apisV2+"apibindings/widgets", "")
		return code == http.StatusNotFound
	})
	one.eventually("nothing is served any more", func() bool { // the index hears of it as informers do
		code, _ := one.status(http.MethodGet, widgets, "")
		return code == http.StatusNotFound
	})
	lc = one.get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster")
	require.NotContains(t, lc.GetAnnotations()["internal.apis.kcp.io/resource-bindings"], "widgets")
	require.EqualValues(t, 2, field(two.get(widgets+"/a"), "spec", "size"), "others keep theirs")
}

// testBindingNames: who comes first has a name, binding or definition, and who waits
// gets it without being touched.
func testBindingNames(t *testing.T, e *env) {
	crd := func(plural string) string {
		kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
		return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
			plural, plural, plural[:len(plural)-1], kind, kind+"List")
	}
	provider, k := newAPIKinds(e, "names-provider").in(t), newAPIKinds(e, "names-consumer").in(t)
	provider.export("one", provider.schema("v1", "widgets", "size"))
	provider.export("two", provider.schema("v2", "widgets", "weight"))

	k.bind("first", provider, "one")
	k.until("first", "Ready", "True <nil>")
	k.bind("second", provider, "two")
	conflict := k.until("second", "InitialBindingCompleted", "False NamingConflicts")
	require.Contains(t, fmt.Sprint(field(conflict, "status", "conditions")), `"widgets" is already in use by APIBinding "first"`)
	require.Equal(t, "Binding", field(conflict, "status", "phase"))
	code, says := k.status(http.MethodPost, definitions, crd("widgets"))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, `widgets.example.org is served by APIBinding \"first\"`)
	k.create(widgets, "%s", widget("a", "size", 1))

	// Another identity, another world.
	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/first", "")
	k.until("second", "Ready", "True <nil>")
	code, _ = k.status(http.MethodGet, widgets+"/a", "")
	require.Equal(t, http.StatusNotFound, code)
	k.create(widgets, "%s", widget("a", "weight", 1))

	// A definition waits for a binding, and a binding for a definition.
	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/second", "")
	k.eventually("the names are free", func() bool {
		code, _ := k.status(http.MethodPost, definitions, crd("widgets"))
		return code == http.StatusCreated
	})
	k.bind("third", provider, "one")
	conflict = k.until("third", "InitialBindingCompleted", "False NamingConflicts")
	require.Contains(t, fmt.Sprint(field(conflict, "status", "conditions")), "in use by CustomResourceDefinition widgets.example.org")
	k.ask(http.StatusOK, http.MethodDelete, definitions+"/widgets.example.org", "")
	k.until("third", "Ready", "True <nil>")

	// What every logical cluster has cannot be had again.
	provider.create(apisV1+"apiresourceschemas", `{"metadata":{"name":"v1.leases.coordination.k8s.io","annotations":{"api-approved.kubernetes.io":"https://example.org/approved"}},"spec":{"group":"coordination.k8s.io","scope":"Namespaced","names":{"plural":"leases","singular":"lease","kind":"Lease","listKind":"LeaseList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object"}}]}}`)
	provider.export("builtin", "v1.leases.coordination.k8s.io")
	k.bind("builtin", provider, "builtin")
	k.until("builtin", "InitialBindingCompleted", "False NamingConflicts")
}

// testBindingEvolution: bindings follow their export, and keep what it drops.
func testBindingEvolution(t *testing.T, e *env) {
	provider, k := newAPIKinds(e, "evolution-provider").in(t), newAPIKinds(e, "evolution-consumer").in(t)
	// The schema, and the identity, may come late.
	provider.create(apisV2+"apiexports", `{"metadata":{"name":"e"},"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v1.widgets.example.org","storage":{"crd":{}}}],"identity":{"secretRef":{"namespace":"default","name":"late"}}}}`)
	k.bind("e", provider, "e")
	k.until("e", "APIExportValid", "False MissingIdentityHash")
	provider.create("/api/v1/namespaces/default/secrets", `{"metadata":{"name":"late"},"stringData":{"key":"mine"}}`)
	k.until("e", "APIExportValid", "False InternalError")
	provider.schema("v1", "widgets", "size")
	k.until("e", "Ready", "True <nil>")
	k.create(widgets, "%s", widget("a", "size", 1))

	provider.schema("v2", "widgets", "weight")
	provider.schema("v1", "gadgets", "size")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"metadata":{"annotations":{"extra.apis.kcp.io/note":"hello","other":"x"}},"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v2.widgets.example.org","storage":{"crd":{}}},{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}}]}}`)
	k.eventually("the new schema is served", func() bool {
		code, _ := k.status(http.MethodGet, "/apis/example.org/v1/gadgets", "")
		return code == http.StatusOK
	})
	k.eventually("what the new schema does not have is not shown", func() bool { return field(k.get(widgets+"/a"), "spec", "size") == nil })
	k.create(widgets, "%s", widget("b", "weight", 7))
	bound := k.get(apisV2 + "apibindings/e")
	require.Equal(t, "hello", bound.GetAnnotations()["extra.apis.kcp.io/note"])
	require.NotContains(t, bound.GetAnnotations(), "other")

	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"metadata":{"annotations":{"extra.apis.kcp.io/note":null}},"spec":{"resources":[{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}}]}}`)
	k.eventually("the annotation is taken away", func() bool {
		return k.get(apisV2 + "apibindings/e").GetAnnotations()["extra.apis.kcp.io/note"] == ""
	})
	k.create(widgets, "%s", widget("c", "weight", 8))
	require.Len(t, field(k.get(apisV2+"apibindings/e"), "status", "boundResources"), 2)
}

// testTakingOver: another binding of the same schema and identity has the objects when
// the first one goes.
func testTakingOver(t *testing.T, provider, k apiKinds) {
	t.Helper()
	schema := provider.schema("v1", "widgets", "size")
	provider.export("one", schema)
	k.bindPath(http.StatusCreated, "first", provider.cluster, "one")
	k.until("first", "Ready", "True <nil>")
	made := k.create(widgets, "%s", widget("a", "size", 1))
	// The same export, bound twice.
	k.bind("second", provider, "one")
	k.until("second", "InitialBindingCompleted", "False NamingConflicts")
	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/first", "")
	k.until("second", "Ready", "True <nil>")
	after := k.get(widgets + "/a")
	require.Equal(t, made.GetUID(), after.GetUID())
	require.Equal(t, made.GetResourceVersion(), after.GetResourceVersion())

	// Who waits to take it over and can never bind leaves nothing behind either.
	k.define("example.org", "gadgets", "Gadget", "v1")
	provider.schema("v1", "gadgets", "size")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/one", `{"spec":{"resources":[{"group":"example.org","name":"gadgets","schema":"v1.gadgets.example.org","storage":{"crd":{}}},{"group":"example.org","name":"widgets","schema":"v1.widgets.example.org","storage":{"crd":{}}}]}}`)
	k.until("second", "BindingUpToDate", "False NamingConflicts")
	k.bind("third", provider, "one")
	k.until("third", "InitialBindingCompleted", "False NamingConflicts")
	for _, name := range []string{"second", "third"} {
		k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/"+name, "")
		k.eventually("binding "+name+" is gone", func() bool {
			code, _ := k.status(http.MethodGet, apisV2+"apibindings/"+name, "")
			return code == http.StatusNotFound
		})
	}
	k.ask(http.StatusOK, http.MethodDelete, definitions+"/gadgets.example.org", "")
	k.bind("fourth", provider, "one")
	k.until("fourth", "Ready", "True <nil>")
	require.Empty(t, k.versions(widgets))
}

// testSharedIdentity: of two exports that share an identity and offer the same schema, one has what
// is bound to the other when that binding goes, and its view shows it; whose schema is another one
// has nothing of it.
func testSharedIdentity(t *testing.T, provider, k apiKinds) {
	t.Helper()
	provider.create("/api/v1/namespaces/default/secrets", `{"metadata":{"name":"shared"},"stringData":{"key":"of all of them"}}`)
	schema, another := provider.schema("v1", "widgets", "size"), provider.schema("v2", "widgets", "size")
	for name, offered := range map[string]string{"one": schema, "two": schema, "three": another} {
		provider.create(apisV2+"apiexports", `{"metadata":{"name":%q},"spec":{"identity":{"secretRef":{"namespace":"default","name":"shared"}},"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}}]}}`, name, offered)
	}
	k.bindPath(http.StatusCreated, "first", provider.cluster, "one")
	bound := k.until("first", "Ready", "True <nil>")
	for _, name := range []string{"a", "b"} {
		k.create(widgets, "%s", widget(name, "size", 1))
	}
	made := k.versions(widgets)
	require.Len(t, made, 2)
	k.bindPath(http.StatusCreated, "second", provider.cluster, "two")
	k.until("second", "InitialBindingCompleted", "False NamingConflicts")
	viewed := func(export string) int {
		code, _ := provider.through(export, k.cluster).status(http.MethodGet, widgets, "")
		return code
	}
	k.eventually("the view of the first export has them", func() bool { return viewed("one") == http.StatusOK })
	require.Equal(t, http.StatusForbidden, viewed("two"), "and that of the other one nothing")

	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/first", "")
	after := k.until("second", "Ready", "True <nil>")
	k.eventually("the first one is gone", func() bool {
		code, _ := k.status(http.MethodGet, apisV2+"apibindings/first", "")
		return code == http.StatusNotFound
	})
	require.Equal(t, made, k.versions(widgets), "the same objects, and nobody has written them")
	require.Equal(t, field(bound, "status", "boundResources"), field(after, "status", "boundResources"))
	require.Contains(t, k.get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").GetAnnotations()["internal.apis.kcp.io/resource-bindings"], `"widgets.example.org":{"n":"second"}`)
	k.eventually("they are in the view of the other export, and of no other", func() bool {
		return viewed("two") == http.StatusOK && viewed("one") == http.StatusForbidden
	})
	require.Equal(t, made, provider.through("two", k.cluster).versions(widgets))
	k.ask(http.StatusOK, http.MethodPatch, widgets+"/a", `{"spec":{"size":2}}`)

	// The schema is another one, though the resource and the identity are the same.
	k.bindPath(http.StatusCreated, "third", provider.cluster, "three")
	k.until("third", "InitialBindingCompleted", "False NamingConflicts")
	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/second", "")
	k.until("third", "Ready", "True <nil>")
	require.Empty(t, k.versions(widgets), "what nobody takes over is deleted")
}

// testMaximalPolicy: the provider has a say in what consumers may do.
func testMaximalPolicy(t *testing.T, provider, k apiKinds) {
	t.Helper()
	const rules = rbacV1
	provider.export("e", provider.schema("v1", "widgets", "size"))
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	provider.create(rules+"clusterroles", `{"metadata":{"name":"read"},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":["get","list"]}]}`)
	provider.create(rules+"clusterrolebindings", `{"metadata":{"name":"read"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"read"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:system:authenticated"}]}`)
	k.create(rules+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	k.bindPath(http.StatusCreated, "e", provider.cluster, "e")
	k.until("e", "Ready", "True <nil>")
	tenant := k.as("user-1-token")
	tenant.eventually("the tenant may read", func() bool {
		code, _ := tenant.status(http.MethodGet, widgets, "")
		return code == http.StatusOK
	})
	tenant.eventually("the tenant may not write", func() bool {
		code, says := tenant.status(http.MethodPost, widgets+"?dryRun=All", widget("a", "size", 1))
		return code == http.StatusForbidden && strings.Contains(says, "access not permitted by maximal permission policy")
	})
	code, says := tenant.status(http.MethodPost, widgets, widget("a", "size", 1))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "access not permitted by maximal permission policy")
	// Nor by another name of the same, for which the policy is not asked.
	for _, name := range []string{":", "::", ":" + strings.Repeat("0", 64), "%3a"} {
		code, says = tenant.status(http.MethodPost, widgets+name, widget("a", "size", 1))
		require.Equal(t, http.StatusNotFound, code, "%s: %s", name, says)
		code, says = tenant.status(http.MethodPatch, apisV2+"apibindings"+name+"/e/status", `{"status":{"boundResources":[]}}`)
		require.Equal(t, http.StatusNotFound, code, "%s: %s", name, says)
	}
	code, says = tenant.status(http.MethodPatch, apisV2+"apibindings/e/status", `{"status":{"boundResources":[]}}`)
	require.Equal(t, http.StatusForbidden, code, says)
	provider.create(rules+"clusterroles", `{"metadata":{"name":"write"},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":["create","update","patch"]}]}`)
	provider.create(rules+"clusterrolebindings", `{"metadata":{"name":"write"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:user-1"}]}`)
	tenant.eventually("the tenant may write", func() bool {
		code, _ := tenant.status(http.MethodPost, widgets, widget("a", "size", 1))
		return code == http.StatusCreated
	})
	code, _ = tenant.status(http.MethodDelete, widgets+"/a", "")
	require.Equal(t, http.StatusForbidden, code)
	code, says = tenant.write(http.MethodPatch, widgets+"/a", "merge-patch+json", `{"metadata":`+absentOwner+`}`)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "requires the verb delete")
	tenant.ask(http.StatusOK, http.MethodPatch, widgets+"/a", `{"metadata":{"labels":{"mine":"x"}}}`)
	testPolicyForServiceAccounts(t, provider, k)
	// Without the policy the consumer decides alone.
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", `{"spec":{"maximalPermissionPolicy":null}}`)
	tenant.eventually("the tenant may delete", func() bool {
		code, _ := tenant.status(http.MethodDelete, widgets+"/a", "")
		return code == http.StatusOK
	})
}

// testPolicyForServiceAccounts: the provider knows the service accounts of consumers by a name that
// says where they are, and by no other.
func testPolicyForServiceAccounts(t *testing.T, provider, k apiKinds) {
	t.Helper()
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	k.create(accounts, `{"metadata":{"name":"robot"}}`)
	k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"robot"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"ServiceAccount","namespace":"default","name":"robot"}]}`)
	token := k.create(accounts+"/robot/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	robot := k.as(fmt.Sprint(field(token, "status", "token")))
	robot.eventually("it may read, as all who are authenticated", func() bool {
		code, _ := robot.status(http.MethodGet, widgets, "")
		return code == http.StatusOK
	})
	grant := func(name, user string) {
		provider.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"apis.kcp.io:binding:%s"}]}`, name, user)
	}
	grant("robot-without-a-place", "system:serviceaccount:default:robot")
	grant("robot-of-the-provider", "system:kcp:serviceaccount:"+provider.cluster+":default:robot")
	grant("marker", "user-2")
	k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"marker"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`)
	other := k.as("user-2-token")
	other.eventually("the bindings before it are known, too", func() bool {
		code, _ := other.status(http.MethodPost, widgets, widget("marker", "size", 1))
		return code == http.StatusCreated
	})
	code, says := robot.status(http.MethodPost, widgets, widget("robots", "size", 1))
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "access not permitted by maximal permission policy")
	grant("robot", "system:kcp:serviceaccount:"+k.cluster+":default:robot")
	robot.eventually("it may write", func() bool {
		code, _ := robot.status(http.MethodPost, widgets, widget("robots", "size", 1))
		return code == http.StatusCreated
	})
	code, says = robot.status(http.MethodDelete, widgets+"/robots", "")
	require.Equal(t, http.StatusForbidden, code, says)
}

// testBoundContent: objects of bound APIs count in quotas, and go with their namespace
// and with their logical cluster.
func testBoundContent(t *testing.T, e *env) {
	provider, k := newAPIKinds(e, "content-provider").in(t), newAPIKinds(e, "content-consumer").in(t)
	identity := provider.export("e", provider.schema("v1", "widgets", "size"))
	k.bind("e", provider, "e")
	k.until("e", "Ready", "True <nil>")
	k.create("/api/v1/namespaces", `{"metadata":{"name":"other"}}`)
	other := strings.Replace(widgets, "default", "other", 1)
	k.create("/api/v1/namespaces/other/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"count/widgets.example.org":"1"}}}`)
	k.eventually("the quota is known", func() bool {
		return fmt.Sprint(field(k.get("/api/v1/namespaces/other/resourcequotas/q"), "status", "used")) == "map[count/widgets.example.org:0]"
	})
	k.create(other, "%s", widget("a", "size", 1))
	// Admission counts by an informer, which may be behind.
	k.eventually("the quota is full", func() bool {
		code, says := k.status(http.MethodPost, other, widget("b", "size", 1))
		if code == http.StatusCreated {
			k.ask(http.StatusOK, http.MethodDelete, other+"/b", "")
		}
		return code == http.StatusForbidden && strings.Contains(says, "exceeded quota: q")
	})
	k.create(widgets, "%s", widget("a", "size", 1))

	// Metadata, without the identity, beside those of a definition.
	provider.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	provider.create(widgets, "%s", widget("own", "size", 1))
	inOne := func(path string) (n int) {
		code, answer := do(t, k.config, call{path: "/clusters/*" + path, header: http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}}})
		require.Equal(t, http.StatusOK, code, "%s", answer)
		for _, cluster := range []string{provider.cluster, k.cluster} {
			n += strings.Count(string(answer), `"kcp.io/cluster":"`+cluster+`"`)
		}
		require.NotContains(t, string(answer), "internal.apis.kcp.io/identity")
		return n
	}
	require.Equal(t, 3, inOne("/apis/example.org/v1/widgets"))
	require.Equal(t, 2, inOne("/apis/example.org/v1/widgets:"+identity))

	k.ask(http.StatusOK, http.MethodDelete, "/api/v1/namespaces/other", "")
	k.eventually("the namespace is gone", func() bool {
		code, _ := k.status(http.MethodGet, "/api/v1/namespaces/other", "")
		return code == http.StatusNotFound
	})
	require.Equal(t, 1, inOne("/apis/example.org/v1/widgets:"+identity))

	root := apiKinds{env: e, config: k.config, cluster: "root"}.in(t)
	root.ask(http.StatusOK, http.MethodDelete, "/apis/tenancy.kcp.io/v1alpha1/workspaces/content-consumer", "")
	k.eventually("the workspace is gone", func() bool {
		code, _ := root.status(http.MethodGet, "/apis/tenancy.kcp.io/v1alpha1/workspaces/content-consumer", "")
		return code == http.StatusNotFound
	})
	all := apiKinds{env: e, config: k.config, cluster: "*"}.in(t)
	all.eventually("nobody has the identity", func() bool { // the index hears of it as informers do
		code, _ := all.status(http.MethodGet, "/apis/example.org/v1/widgets:"+identity, "")
		return code == http.StatusNotFound
	})
}
