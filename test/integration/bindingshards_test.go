package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const rbacV1 = "/apis/rbac.authorization.k8s.io/v1/"

// TestBindingAcrossShards: provider and consumer may be on different shards.
func TestBindingAcrossShards(t *testing.T) {
	e := newEnv(t, two.Get(t))
	t.Run("life", func(t *testing.T) { testBindingAcrossShards(t, e) })
	t.Run("hooks", func(t *testing.T) { testHooksAcrossShards(t, e) })
	t.Run("hooks of writers", func(t *testing.T) {
		testHooksOfWriters(t, "far-judge", newAPIKindsOn(e, "far-judge", 1).in(t), newAPIKinds(e, "far-judged").in(t))
	})
	t.Run("view", func(t *testing.T) { testViewAcrossShards(t, e) })
	t.Run("conversion", func(t *testing.T) { testConversionAcrossShards(t, e) })
	t.Run("bind", func(t *testing.T) { testBindAcrossShards(t, e) })
	t.Run("maximal policy", func(t *testing.T) {
		testMaximalPolicy(t, newAPIKindsOn(e, "far-policy-provider", 1).in(t), newAPIKinds(e, "far-policy-consumer").in(t))
	})
	t.Run("taking over", func(t *testing.T) {
		testTakingOver(t, newAPIKindsOn(e, "far-over-provider", 1).in(t), newAPIKinds(e, "far-over-consumer").in(t))
	})
	t.Run("taking over from another export", func(t *testing.T) {
		testSharedIdentity(t, newProviderOn(e, "far-shared-provider", 1).in(t), newAPIKinds(e, "far-shared-consumer").in(t))
	})
	t.Run("conversion by a webhook", func(t *testing.T) {
		testWebhookConversion(t, newAPIKindsOn(e, "far-webhook-provider", 1).in(t), newAPIKinds(e, "far-webhook-consumer").in(t))
	})
	t.Run("without a provider", func(t *testing.T) { testProviderGoes(t, e, 1) })
	t.Run("endpoint slices", func(t *testing.T) { testEndpointSlices(t, e) })
	t.Run("marks", func(t *testing.T) { testReplicationMarks(t, e) })
}

// bindPath makes a binding to an export, by the path of its logical cluster.
func (k apiKinds) bindPath(want int, name, path, export string) (says string) {
	k.t.Helper()
	k.eventually(fmt.Sprintf("binding %s:%s is answered %d", path, export, want), func() bool {
		code, answer := k.status(http.MethodPost, apisV2+"apibindings", typed(apisV2+"apibindings", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`, name, path, export)))
		says = answer
		return code == want
	})
	return says
}

func testBindingAcrossShards(t *testing.T, e *env) {
	provider, k := newAPIKindsOn(e, "far-provider", 1).in(t), newAPIKinds(e, "far-consumer").in(t)
	schema := provider.schema("v1", "widgets", "size")
	identity := provider.export("widgets", schema)
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/widgets", `{"metadata":{"annotations":{"extra.apis.kcp.io/a":"b"}}}`)
	k.bindPath(http.StatusCreated, "widgets", "root:far-provider", "widgets")
	bound := k.until("widgets", "Ready", "True <nil>")
	require.Equal(t, provider.cluster, field(bound, "status", "apiExportClusterName"))
	require.Equal(t, map[string]any{
		"group": "example.org", "resource": "widgets", "storageVersions": []any{"v1"},
		"schema": map[string]any{"name": schema, "UID": string(provider.get(apisV1 + "apiresourceschemas/" + schema).GetUID()), "identityHash": identity},
	}, field(bound, "status", "boundResources").([]any)[0])
	k.create(widgets, "%s", widget("a", "size", 1))
	k.eventually("annotations are mirrored", func() bool {
		return k.get(apisV2 + "apibindings/widgets").GetAnnotations()["extra.apis.kcp.io/a"] == "b"
	})

	// The export changes, and with it what is bound.
	second := provider.schema("v2", "widgets", "length")
	gadgets := provider.schema("v1", "gadgets", "size")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/widgets", fmt.Sprintf(
		`{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}},{"group":"example.org","name":"gadgets","schema":%q,"storage":{"crd":{}}}]}}`, second, gadgets))
	k.eventually("the new schemas are bound", func() bool {
		all, _ := field(k.get(apisV2+"apibindings/widgets"), "status", "boundResources").([]any)
		return len(all) == 2 && fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["name"]) == second
	})
	k.eventually("the new schema is served", func() bool { // the index hears of it as informers do
		return field(k.create(widgets+"?dryRun=All", "%s", widget("b", "length", 2)), "spec", "length") != nil
	})
	k.create(widgets, "%s", widget("b", "length", 2))
	require.EqualValues(t, 2, field(k.get(widgets+"/b"), "spec", "length"))

	// What it takes away stays with those who have it.
	provider.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/widgets", "")
	for _, name := range []string{schema, second, gadgets} {
		provider.ask(http.StatusOK, http.MethodDelete, apisV1+"apiresourceschemas/"+name, "")
	}
	k.until("widgets", "APIExportValid", "False APIExportNotFound")
	k.create(widgets, "%s", widget("c", "length", 3))

	// One that is made again has the identity, and other schemas.
	third := provider.schema("v1", "widgets", "width")
	require.Equal(t, identity, provider.export("widgets", third))
	k.until("widgets", "APIExportValid", "True <nil>")
	k.eventually("the schema of that name is another one", func() bool {
		all, _ := field(k.get(apisV2+"apibindings/widgets"), "status", "boundResources").([]any)
		return fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["UID"]) == string(provider.get(apisV1+"apiresourceschemas/"+third).GetUID())
	})
	k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/widgets", "")
	k.eventually("the binding goes", func() bool {
		code, _ := k.status(http.MethodGet, apisV2+"apibindings/widgets", "")
		return code == http.StatusNotFound
	})
}

// testViewAcrossShards: each shard has the view of an export for its consumers, and the
// provider's rules hold on all.
func testViewAcrossShards(t *testing.T, e *env) {
	provider, k := newAPIKindsOn(e, "viewing-provider", 1).in(t), newAPIKinds(e, "viewed-consumer").in(t)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.claim(`[` + claim + `}]`)
	k.bindPath(http.StatusCreated, "e", "root:viewing-provider", "e")
	k.until("e", "Ready", "True <nil>")
	k.create(widgets, "%s", widget("a", "size", 1))
	k.create(configMaps, `{"metadata":{"name":"a"}}`)
	k.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)

	byName, byPath := apiKinds{env: k.env, config: k.config, cluster: provider.cluster}.through("e", "*"), apiKinds{env: k.env, config: k.config, cluster: "root:viewing-provider"}.through("e", k.cluster)
	stranger := byName.as("user-1-token")
	code, says := stranger.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, notPermitted)
	provider.create(rbacV1+"clusterroles", `{"metadata":{"name":"content"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":["e"],"verbs":["get","list"]}]}`)
	provider.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"content"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"content"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	for _, view := range []apiKinds{byName, byPath, stranger, byPath.as("user-1-token")} {
		view.eventually("the view opens", func() bool {
			code, _ := view.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
			return code == http.StatusOK
		})
		view.eventually("what is claimed is seen", func() bool {
			code, says := view.status(http.MethodGet, "/api/v1/configmaps", "")
			return code == http.StatusOK && strings.Contains(says, `"name":"a"`)
		})
		require.Contains(t, fmt.Sprint(view.get("/apis/example.org/v1").Object), "widgets")
	}
	code, says = byPath.as("user-1-token").status(http.MethodDelete, widgets+"/a", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// The groups that the provider's logical cluster requires are known here, too.
	for _, groups := range []struct {
		required string
		code     int
	}{{"team-2", http.StatusForbidden}, {"team-1", http.StatusOK}, {"team-2", http.StatusForbidden}} {
		provider.ask(http.StatusOK, http.MethodPatch, ownLC, `{"metadata":{"annotations":{"authorization.kcp.io/required-groups":"`+groups.required+`"}}}`)
		stranger.eventually("the view is for "+groups.required, func() bool {
			code, says = stranger.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
			return code == groups.code
		})
		require.Equal(t, code == http.StatusForbidden, strings.Contains(says, notPermitted), says)
	}
	byName.get("/apis/example.org/v1/widgets")
}

// testConversionAcrossShards: the rules of a provider's APIConversion convert on the shards
// of its consumers, and changes of them reach those.
func testConversionAcrossShards(t *testing.T, e *env) {
	const name, conversions = "v1.people.example.org", apisV1 + "apiconversions"
	const v1, v2 = "/apis/example.org/v1/namespaces/default/people", "/apis/example.org/v2/namespaces/default/people"
	provider, k := newAPIKindsOn(e, "converting-provider", 1).in(t), newAPIKinds(e, "converting-consumer").in(t)
	provider.create(apisV1+"apiresourceschemas", peopleSchema, name)
	provider.create(conversions, "%s", conversion(name, "self.upperAscii()"))
	provider.export("people", name)
	k.bindPath(http.StatusCreated, "people", "root:converting-provider", "people")
	k.until("people", "Ready", "True <nil>")
	k.create(v1, `{"apiVersion":"example.org/v1","kind":"Person","metadata":{"name":"ada"},"spec":{"first":"Ada","last":"Lovelace"}}`)
	last := func(want string) {
		t.Helper()
		k.eventually("it is converted to "+want, func() bool { return field(k.get(v2+"/ada"), "spec", "name", "last") == want })
	}
	last("LOVELACE")
	k.create(v2, `{"apiVersion":"example.org/v2","kind":"Person","metadata":{"name":"bob"},"spec":{"name":{"first":"Bob","last":"B"},"age":7}}`)
	require.Equal(t, map[string]any{"first": "Bob", "last": "B"}, k.get(v1 + "/bob").Object["spec"])
	require.EqualValues(t, 7, field(k.get(v2+"/bob"), "spec", "age"))
	provider.ask(http.StatusOK, http.MethodPatch, conversions+"/"+name, conversion(name, "self.lowerAscii()"))
	last("lovelace")
	// A schema that is bound before there are rules for it.
	const late = "v2.people.example.org"
	provider.create(apisV1+"apiresourceschemas", peopleSchema, late)
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/people", `{"spec":{"resources":[{"group":"example.org","name":"people","schema":"`+late+`","storage":{"crd":{}}}]}}`)
	k.eventually("nothing converts", func() bool { return field(k.get(v2+"/ada"), "spec", "name") == nil })
	provider.create(conversions, "%s", conversion(late, "self"))
	last("Lovelace")
}

// testBindAcrossShards: the rules of the provider's logical cluster say who may bind, and
// whoever may not cannot tell what there is.
func testBindAcrossShards(t *testing.T, e *env) {
	provider, k := newAPIKindsOn(e, "asked-provider", 1).in(t), newAPIKinds(e, "asking-consumer").in(t)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	// The administrator's dry run shows that the export is known here.
	k.eventually("the export is known", func() bool {
		code, _ := k.status(http.MethodPost, apisV2+"apibindings?dryRun=All", typed(apisV2+"apibindings", `{"metadata":{"name":"x"},"spec":{"reference":{"export":{"path":"root:asked-provider","name":"e"}}}}`))
		return code == http.StatusCreated
	})
	tenant := k.as("user-1-token")
	for _, path := range []string{"root:asked-provider", "root:asked-nowhere", provider.cluster} {
		for _, export := range []string{"e", "none"} {
			require.Contains(t, tenant.bindPath(http.StatusForbidden, "b", path, export), "no permission to bind to export "+path+":"+export)
		}
	}
	provider.create(rbacV1+"clusterroles", `{"metadata":{"name":"bind"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"resourceNames":["e"],"verbs":["bind"]}]}`)
	provider.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"bind"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bind"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	tenant.bindPath(http.StatusCreated, "by-path", "root:asked-provider", "e")
	k.until("by-path", "Ready", "True <nil>") // before another one wants the names
	tenant.bindPath(http.StatusCreated, "by-name", provider.cluster, "e")
	k.until("by-name", "Ready", "False NamingConflicts")
	require.Contains(t, tenant.bindPath(http.StatusForbidden, "b", "root:asked-provider", "none"), "no permission to bind to export root:asked-provider:none")
}

// testReplicationMarks: what other shards have to know is marked because of what it says,
// in whatever order it comes and goes, and nothing else is.
func testReplicationMarks(t *testing.T, e *env) {
	const key = "internal.kcp.io/replicate"
	k := newAPIKindsOn(e, "marked-provider", 1).in(t)
	lc := "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
	mark := func(path string) string { return k.get(path).GetAnnotations()[key] }
	subject := func(kind, name string) string {
		return fmt.Sprintf(`"subjects":[{"kind":%q,"apiGroup":"rbac.authorization.k8s.io","name":%q}]`, kind, name)
	}
	binding := func(name, role, subject string) func() {
		return func() {
			k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},%s}`, name, role, subject)
		}
	}
	objects := []struct {
		path   string
		create func()
	}{
		{rbacV1 + "clusterroles/bind", func() {
			k.create(rbacV1+"clusterroles", `{"metadata":{"name":"bind"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind"]}]}`)
		}},
		{rbacV1 + "clusterrolebindings/bind", binding("bind", "bind", subject("User", "user-1"))},
		{rbacV1 + "clusterroles/read", func() {
			k.create(rbacV1+"clusterroles", `{"metadata":{"name":"read"},"rules":[{"apiGroups":["example.org"],"resources":["widgets"],"verbs":["get"]}]}`)
		}},
		{rbacV1 + "clusterrolebindings/read", binding("read", "read", subject("User", "apis.kcp.io:binding:user-1"))},
		{rbacV1 + "clusterroles/enter", func() {
			k.create(rbacV1+"clusterroles", `{"metadata":{"name":"enter"},"rules":[{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
		}},
		{rbacV1 + "clusterrolebindings/enter", binding("enter", "enter", subject("User", "user-1"))},
		{apisV2 + "apiexports/e", func() { k.create(apisV2+"apiexports", `{"metadata":{"name":"e"}}`) }},
	}
	marks := map[string]string{lc: "apis.kcp.io"}
	for _, o := range objects[:len(objects)-1] {
		if marks[o.path] = "apis.kcp.io"; strings.HasSuffix(o.path, "/enter") {
			marks[o.path] = "core.kcp.io" // who enters is asked where the logical cluster is replicated
		}
	}
	k.create(rbacV1+"clusterroles", `{"metadata":{"name":"other"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
	binding("other", "other", subject("User", "user-1"))()
	for first := range objects {
		for i := range objects {
			objects[(first+i)%len(objects)].create()
		}
		for path, want := range marks {
			k.eventually(fmt.Sprintf("%s is marked, %s being first", path, objects[first].path), func() bool { return mark(path) == want })
		}
		if first == 0 {
			require.Empty(t, mark(rbacV1+"clusterroles/other"))
			require.Empty(t, mark(rbacV1+"clusterrolebindings/other"))
			k.ask(http.StatusOK, http.MethodPatch, rbacV1+"clusterrolebindings/other", `{"metadata":{"annotations":{"`+key+`":"mine"}}}`)
			testMarksOfTenants(t, k, subject)
		}
		for i := range objects {
			k.ask(http.StatusOK, http.MethodDelete, objects[(first+2*i)%len(objects)].path, "")
		}
		k.eventually("without an export nothing is", func() bool { return mark(lc) == "" })
	}
	require.Equal(t, "mine", mark(rbacV1+"clusterrolebindings/other"))
}

// testMarksOfTenants: a tenant who replaces a marked object keeps the mark, and cannot change it.
func testMarksOfTenants(t *testing.T, k apiKinds, subject func(kind, name string) string) {
	t.Helper()
	k.create(rbacV1+"clusterrolebindings", `{"metadata":{"name":"tenant"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},%s}`, subject("User", "user-3"))
	k.eventually("a binding to a role of the system is marked", func() bool {
		return k.get(rbacV1 + "clusterrolebindings/tenant").GetAnnotations()["internal.kcp.io/replicate"] == "apis.kcp.io,core.kcp.io"
	})
	tenant := k.as("user-3-token")
	role := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"bind"%s},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"verbs":["bind","get"]}]}`
	tenant.eventually("the tenant may write", func() bool {
		code, _ := tenant.status(http.MethodPut, rbacV1+"clusterroles/bind", fmt.Sprintf(role, ""))
		return code == http.StatusOK
	})
	require.Equal(t, "apis.kcp.io", k.get(rbacV1 + "clusterroles/bind").GetAnnotations()["internal.kcp.io/replicate"])
	code, says := tenant.status(http.MethodPut, rbacV1+"clusterroles/bind", fmt.Sprintf(role, `,"annotations":{"internal.kcp.io/replicate":"x"}`))
	require.Equal(t, http.StatusForbidden, code, says)
	k.ask(http.StatusOK, http.MethodDelete, rbacV1+"clusterrolebindings/tenant", "")
}

// testEndpointSlices: endpoint slices name the shards that have consumers, whether these
// have bound anything or not, within their partition.
func testEndpointSlices(t *testing.T, e *env) {
	provider := newAPIKindsOn(e, "sliced-provider", 1).in(t)
	near, far := newAPIKindsOn(e, "sliced-near", 1).in(t), newAPIKinds(e, "sliced-far").in(t)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	const partitions = "/apis/topology.kcp.io/v1alpha1/partitions"
	slice := func(k apiKinds, name, more string) {
		k.bindableSlice(name, provider.cluster, more)
	}
	url := func(shard int) string {
		return e.Shard(shard).Host + "/services/apiexport/" + provider.cluster + "/e"
	}
	has := func(k apiKinds, name string, want ...string) {
		t.Helper()
		var found []string
		k.eventually(fmt.Sprintf("slice %s has %v", name, want), func() bool {
			s := k.get(apisV1 + "apiexportendpointslices/" + name)
			all, _ := field(s, "status", "endpoints").([]any)
			found = nil
			for _, endpoint := range all {
				found = append(found, fmt.Sprint(endpoint.(map[string]any)["url"]))
			}
			return condition(s, "APIExportValid") != "" && slices.Equal(found, want)
		})
	}
	const sets = "/apis/topology.kcp.io/v1alpha1/partitionsets"
	provider.create(sets, `{"apiVersion":"topology.kcp.io/v1alpha1","kind":"PartitionSet","metadata":{"name":"by-name"},"spec":{"dimensions":["name"]}}`)
	provider.eventually("each shard has a partition", func() bool {
		set := provider.get(sets + "/by-name")
		return condition(set, "PartitionsReady") == "True <nil>" && fmt.Sprint(field(set, "status", "count")) == "2"
	})
	require.Equal(t, map[string]any{"name": "root"}, field(provider.get(partitions+"/by-name-root"), "spec", "selector", "matchLabels"))
	provider.ask(http.StatusOK, http.MethodDelete, sets+"/by-name", "")
	provider.eventually("the partitions go with the set", func() bool {
		return len(field(provider.get(partitions), "items").([]any)) == 0
	})
	provider.create(partitions, `{"apiVersion":"topology.kcp.io/v1alpha1","kind":"Partition","metadata":{"name":"first"},"spec":{"selector":{"matchLabels":{"name":"root"}}}}`)
	slice(provider, "all", "")
	// Another path of the same logical cluster, which no annotation tells.
	inner := provider
	inner.cluster = e.workspaceOn("root:sliced-provider", "inner", "shard-1").Spec.Cluster
	inner.export("e", inner.schema("v1", "gadgets", "size"))
	provider.bindableSlice("alias", provider.cluster+":inner", "")
	has(provider, "alias")
	near.bindPath(http.StatusCreated, "inner", inner.cluster, "e")
	has(provider, "alias", e.Shard(1).Host+"/services/apiexport/"+inner.cluster+"/e")
	inner.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/e", "")
	provider.eventually("the export of the alias is missed", func() bool {
		return condition(provider.get(apisV1+"apiexportendpointslices/alias"), "APIExportValid") == "False APIExportNotFound"
	})
	slice(provider, "first", `,"partition":"first"`)
	slice(far, "elsewhere", "")
	has(provider, "e")

	// A binding that can bind nothing counts as well.
	far.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)
	far.bindPath(http.StatusCreated, "e", "root:sliced-provider", "e")
	far.until("e", "Ready", "False NamingConflicts")
	for _, name := range []string{"e", "all", "first"} {
		has(provider, name, url(0))
	}
	has(far, "elsewhere", url(0))
	near.bindPath(http.StatusCreated, "e", provider.cluster, "e")
	for _, name := range []string{"e", "all"} {
		has(provider, name, url(0), url(1))
	}
	has(provider, "first", url(0))
	has(far, "elsewhere", url(0), url(1))
	require.Equal(t, "name=root", field(provider.get(apisV1+"apiexportendpointslices/first"), "status", "shardSelector"))

	// A shard that does not match any more stays while it has consumers.
	provider.ask(http.StatusOK, http.MethodPatch, partitions+"/first", `{"spec":{"selector":{"matchLabels":{"name":"shard-1"}}}}`)
	has(provider, "first", url(0), url(1))
	for _, k := range []apiKinds{far, near} {
		k.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/e", "")
	}
	for _, name := range []string{"e", "all", "first"} {
		has(provider, name)
	}
	provider.ask(http.StatusOK, http.MethodDelete, partitions+"/first", "")
	provider.eventually("the partition is missed", func() bool {
		return condition(provider.get(apisV1+"apiexportendpointslices/first"), "PartitionValid") == "False PartitionInvalidReference"
	})
	provider.ask(http.StatusOK, http.MethodDelete, apisV2+"apiexports/e", "")
	far.eventually("the export is missed", func() bool {
		return condition(far.get(apisV1+"apiexportendpointslices/elsewhere"), "APIExportValid") == "False APIExportNotFound"
	})
}

// bindableSlice makes an endpoint slice of the export e as soon as that is known.
func (k apiKinds) bindableSlice(name, provider, more string) {
	k.t.Helper()
	k.eventually("slice "+name+" is created", func() bool {
		code, _ := k.status(http.MethodPost, apisV1+"apiexportendpointslices", typed(apisV1+"apiexportendpointslices", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"export":{"path":%q,"name":"e"}%s}}`, name, provider, more)))
		return code == http.StatusCreated
	})
}
