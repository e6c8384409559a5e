package apis

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestBindingAcrossShards checks bindings with provider and consumer on different shards.
func TestBindingAcrossShards(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.RunParallel("lifecycle", func(t *testing.T, e *kit.Env) { testBindingAcrossShards(t, e) })
	e.RunParallel("hooks", func(t *testing.T, e *kit.Env) { testHooksAcrossShards(t, e) })
	e.RunParallel("hooks of writers", func(t *testing.T, e *kit.Env) {
		testHooksOfWriters(t, "far-writers-provider", kit.NewWorkspaceClientOn(e, "far-writers-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "far-writers-consumer").ForTest(t))
	})
	e.RunParallel("conversion", func(t *testing.T, e *kit.Env) { testConversionAcrossShards(t, e) })
	e.RunParallel("bind before the export", func(t *testing.T, e *kit.Env) { testBindBeforeExport(t, e) })
	e.RunParallel("bind", func(t *testing.T, e *kit.Env) { testBindAcrossShards(t, e) })
	e.RunParallel("maximal policy", func(t *testing.T, e *kit.Env) {
		testMaximalPolicy(t, kit.NewWorkspaceClientOn(e, "far-policy-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "far-policy-consumer").ForTest(t))
	})
	e.RunParallel("taking over", func(t *testing.T, e *kit.Env) {
		testTakingOver(t, kit.NewWorkspaceClientOn(e, "far-over-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "far-over-consumer").ForTest(t))
	})
	e.RunParallel("taking over from another export", func(t *testing.T, e *kit.Env) {
		testSharedIdentity(t, kit.NewProviderOn(e, "far-shared-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "far-shared-consumer").ForTest(t))
	})
	e.RunParallel("conversion by a webhook", func(t *testing.T, e *kit.Env) {
		testWebhookConversion(t, kit.NewWorkspaceClientOn(e, "far-webhook-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "far-webhook-consumer").ForTest(t))
	})
	e.RunParallel("deleted provider", func(t *testing.T, e *kit.Env) { testDeletedProvider(t, e, 1) })
	e.RunParallel("endpoint slices", func(t *testing.T, e *kit.Env) { testEndpointSlices(t, e) })
}

func testBindingAcrossShards(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClientOn(e, "far-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "far-consumer").ForTest(t)
	schema := provider.CreateSchema("v1", "widgets", "size")
	identity := provider.CreateExport("widgets", schema)
	provider.Patch(kit.APIsV1Alpha2+"apiexports/widgets", `{"metadata":{"annotations":{"extra.apis.kcp.io/a":"b"}}}`)
	bound := k.BindPathReady("widgets", "root:far-provider", "widgets")
	require.Equal(t, provider.ClusterName, kit.Field(bound, "status", "apiExportClusterName"))
	require.Equal(t, map[string]any{
		"group": "example.org", "resource": "widgets", "storageVersions": []any{"v1"},
		"schema": map[string]any{"name": schema, "UID": string(provider.Get(kit.APIsV1Alpha1 + "apiresourceschemas/" + schema).GetUID()), "identityHash": identity},
	}, kit.Field(bound, "status", "boundResources").([]any)[0])
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	k.Eventually("annotations are mirrored", func() bool {
		return k.Get(kit.APIsV1Alpha2 + "apibindings/widgets").GetAnnotations()["extra.apis.kcp.io/a"] == "b"
	})

	// Changes of the export change the bound resources.
	second := provider.CreateSchema("v2", "widgets", "length")
	gadgets := provider.CreateSchema("v1", "gadgets", "size")
	provider.Patch(kit.APIsV1Alpha2+"apiexports/widgets", fmt.Sprintf(
		`{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}},{"group":"example.org","name":"gadgets","schema":%q,"storage":{"crd":{}}}]}}`, second, gadgets))
	k.Eventually("the new schemas are bound", func() bool {
		all, _ := kit.Field(k.Get(kit.APIsV1Alpha2+"apibindings/widgets"), "status", "boundResources").([]any)
		return len(all) == 2 && fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["name"]) == second
	})
	k.Eventually("the new schema is served", func() bool { // the index is updated by an informer
		return kit.Field(k.Create(kit.WidgetsPath+"?dryRun=All", "%s", kit.Widget("b", "length", 2)), "spec", "length") != nil
	})
	k.Create(kit.WidgetsPath, "%s", kit.Widget("b", "length", 2))
	require.EqualValues(t, 2, kit.Field(k.Get(kit.WidgetsPath+"/b"), "spec", "length"))

	// Consumers keep APIs that the provider removes.
	provider.Delete(kit.APIsV1Alpha2 + "apiexports/widgets")
	for _, name := range []string{schema, second, gadgets} {
		provider.Delete(kit.APIsV1Alpha1 + "apiresourceschemas/" + name)
	}
	k.UntilBinding("widgets", "APIExportValid", "False APIExportNotFound")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("c", "length", 3))

	// If an export is created again, it has the same identity, and other schemas.
	third := provider.CreateSchema("v1", "widgets", "width")
	require.Equal(t, identity, provider.CreateExport("widgets", third))
	k.UntilBinding("widgets", "APIExportValid", "True <nil>")
	k.Eventually("the new schema of the same name is bound", func() bool {
		all, _ := kit.Field(k.Get(kit.APIsV1Alpha2+"apibindings/widgets"), "status", "boundResources").([]any)
		return fmt.Sprint(all[0].(map[string]any)["schema"].(map[string]any)["UID"]) == string(provider.Get(kit.APIsV1Alpha1+"apiresourceschemas/"+third).GetUID())
	})
	k.DeleteAndWait(kit.APIsV1Alpha2 + "apibindings/widgets")
}

// testConversionAcrossShards checks that the provider's APIConversion, and changes of it, apply on the shards of consumers.
func testConversionAcrossShards(t *testing.T, e *kit.Env) {
	const name, conversions = "v1.people.example.org", kit.APIsV1Alpha1 + "apiconversions"
	const v1, v2 = "/apis/example.org/v1/namespaces/default/people", "/apis/example.org/v2/namespaces/default/people"
	provider, k := kit.NewWorkspaceClientOn(e, "converting-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "converting-consumer").ForTest(t)
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", kit.PeopleSchema, name)
	provider.Create(conversions, "%s", kit.Conversion(name, "self.upperAscii()"))
	provider.CreateExport("people", name)
	k.BindPathReady("people", "root:converting-provider", "people")
	k.Create(v1, `{"apiVersion":"example.org/v1","kind":"Person","metadata":{"name":"ada"},"spec":{"first":"Ada","last":"Lovelace"}}`)
	last := func(want string) {
		t.Helper()
		k.Eventually("the object is converted to "+want, func() bool { return kit.Field(k.Get(v2+"/ada"), "spec", "name", "last") == want })
	}
	last("LOVELACE")
	k.Create(v2, `{"apiVersion":"example.org/v2","kind":"Person","metadata":{"name":"bob"},"spec":{"name":{"first":"Bob","last":"B"},"age":7}}`)
	require.Equal(t, map[string]any{"first": "Bob", "last": "B"}, k.Get(v1 + "/bob").Object["spec"])
	require.EqualValues(t, 7, kit.Field(k.Get(v2+"/bob"), "spec", "age"))
	provider.Patch(conversions+"/"+name, kit.Conversion(name, "self.lowerAscii()"))
	last("lovelace")
	// A schema that is bound before its rules exist.
	const late = "v2.people.example.org"
	provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", kit.PeopleSchema, late)
	provider.Patch(kit.APIsV1Alpha2+"apiexports/people", `{"spec":{"resources":[{"group":"example.org","name":"people","schema":"`+late+`","storage":{"crd":{}}}]}}`)
	k.Eventually("the new schema without rules is bound", func() bool { return kit.Field(k.Get(v2+"/ada"), "spec", "name") == nil })
	provider.Create(conversions, "%s", kit.Conversion(late, "self"))
	last("Lovelace")
}

// testBindBeforeExport checks that administrators can bind an export that does not exist yet, by a path on another shard.
func testBindBeforeExport(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClientOn(e, "later-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "earlier-consumer").ForTest(t)
	k.BindPath(http.StatusCreated, "widgets", "root:later-provider", "widgets")
	k.BindPath(http.StatusForbidden, "nowhere", "root:later-nowhere", "widgets")
	k.UntilBinding("widgets", "APIExportValid", "False APIExportNotFound")
	provider.CreateExport("gadgets", provider.CreateSchema("v1", "gadgets", "size"))
	k.BindPath(http.StatusCreated, "by-name", provider.ClusterName, "others")
	provider.CreateExport("widgets", provider.CreateSchema("v1", "widgets", "size"))
	k.UntilBinding("widgets", "Ready", "True <nil>")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
}

// testBindAcrossShards checks that users must have permission in the provider's logical cluster, and that the response to other users
// does not depend on whether an export exists.
func testBindAcrossShards(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClientOn(e, "review-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "review-consumer").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.BindRole("all", "cluster-admin", "user-1")
	tenant := k.As("user-1-token")
	for _, path := range []string{"root:review-provider", "root:review-nowhere", provider.ClusterName} {
		for _, export := range []string{"e", "none"} {
			require.Contains(t, tenant.BindPath(http.StatusForbidden, "b", path, export), "no permission to bind to export "+path+":"+export)
		}
	}
	provider.Allow("bind", "user-1", `{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"resourceNames":["e"],"verbs":["bind"]}`)
	tenant.UntilCode(http.StatusCreated, http.MethodPost, kit.APIsV1Alpha2+"apibindings?dryRun=All", kit.WithKind(kit.APIsV1Alpha2+"apibindings", `{"metadata":{"name":"x"},"spec":{"reference":{"export":{"path":"root:review-provider","name":"e"}}}}`))
	tenant.BindPath(http.StatusCreated, "by-path", "root:review-provider", "e")
	k.UntilBinding("by-path", "Ready", "True <nil>") // before the next binding conflicts
	tenant.BindPath(http.StatusCreated, "by-name", provider.ClusterName, "e")
	k.UntilBinding("by-name", "Ready", "False NamingConflicts")
	require.Contains(t, tenant.BindPath(http.StatusForbidden, "b", "root:review-provider", "none"), "no permission to bind to export root:review-provider:none")
}

// testEndpointSlices checks that endpoint slices contain the URLs of shards with consumers in their partition, whether their bindings
// are Ready or not.
func testEndpointSlices(t *testing.T, e *kit.Env) {
	provider := kit.NewWorkspaceClientOn(e, "sliced-provider", 1).ForTest(t)
	near, far := kit.NewWorkspaceClientOn(e, "sliced-near", 1).ForTest(t), kit.NewWorkspaceClient(e, "sliced-far").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	const partitions = "/apis/topology.kcp.io/v1alpha1/partitions"
	slice := func(k kit.WorkspaceClient, name, more string) {
		k.CreateEndpointSlice(name, provider.ClusterName, more)
	}
	url := func(shard int) string {
		return e.VirtualWorkspaces(shard) + "/services/apiexport/" + provider.ClusterName + "/e"
	}
	has := func(k kit.WorkspaceClient, name string, want ...string) {
		t.Helper()
		var found []string
		k.Eventually(fmt.Sprintf("slice %s has %v", name, want), func() bool {
			s := k.Get(kit.APIsV1Alpha1 + "apiexportendpointslices/" + name)
			all, _ := kit.Field(s, "status", "endpoints").([]any)
			found = nil
			for _, endpoint := range all {
				found = append(found, fmt.Sprint(endpoint.(map[string]any)["url"]))
			}
			return kit.Condition(s, "APIExportValid") != "" && slices.Equal(found, want)
		})
	}
	const sets = "/apis/topology.kcp.io/v1alpha1/partitionsets"
	for _, selector := range []string{`{"matchExpressions":[{"key":"region","operator":"Within","values":["a"]}]}`, `{"matchLabels":{"a/b/c":"x"}}`, `{"matchLabels":{"region":"not a label value!"}}`} {
		provider.Do(http.StatusUnprocessableEntity, http.MethodPost, sets, `{"apiVersion":"topology.kcp.io/v1alpha1","kind":"PartitionSet","metadata":{"name":"bad"},"spec":{"dimensions":["region"],"shardSelector":`+selector+`}}`)
	}
	provider.Create(sets, `{"apiVersion":"topology.kcp.io/v1alpha1","kind":"PartitionSet","metadata":{"name":"by-name"},"spec":{"dimensions":["name"]}}`)
	provider.Eventually("the set has a partition for each shard", func() bool {
		set := provider.Get(sets + "/by-name")
		return kit.Condition(set, "PartitionsReady") == "True <nil>" && fmt.Sprint(kit.Field(set, "status", "count")) == "2"
	})
	require.Equal(t, map[string]any{"name": "root"}, kit.Field(provider.Get(partitions+"/by-name-root"), "spec", "selector", "matchLabels"))
	provider.Delete(sets + "/by-name")
	provider.Eventually("the partitions of the set are deleted", func() bool {
		return len(kit.Field(provider.Get(partitions), "items").([]any)) == 0
	})
	provider.Create(partitions, `{"apiVersion":"topology.kcp.io/v1alpha1","kind":"Partition","metadata":{"name":"first"},"spec":{"selector":{"matchLabels":{"name":"root"}}}}`)
	slice(provider, "all", "")
	// Another path of the logical cluster, which is not in its annotation.
	inner := provider.In(e.WorkspaceOn("root:sliced-provider", "inner", "shard-1").Spec.Cluster)
	inner.CreateExport("e", inner.CreateSchema("v1", "gadgets", "size"))
	provider.CreateEndpointSlice("alias", provider.ClusterName+":inner", "")
	has(provider, "alias")
	near.BindPath(http.StatusCreated, "inner", inner.ClusterName, "e")
	has(provider, "alias", e.VirtualWorkspaces(1)+"/services/apiexport/"+inner.ClusterName+"/e")
	inner.Delete(kit.APIsV1Alpha2 + "apiexports/e")
	provider.UntilCondition(kit.APIsV1Alpha1+"apiexportendpointslices/alias", "APIExportValid", "False APIExportNotFound")
	slice(provider, "first", `,"partition":"first"`)
	slice(far, "elsewhere", "")
	has(provider, "e")

	// If a binding has conflicts, it is a consumer as well.
	far.Create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.org"},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)
	far.BindPath(http.StatusCreated, "e", "root:sliced-provider", "e")
	far.UntilBinding("e", "Ready", "False NamingConflicts")
	for _, name := range []string{"e", "all", "first"} {
		has(provider, name, url(0))
	}
	has(far, "elsewhere", url(0))
	near.BindPath(http.StatusCreated, "e", provider.ClusterName, "e")
	for _, name := range []string{"e", "all"} {
		has(provider, name, url(0), url(1))
	}
	has(provider, "first", url(0))
	has(far, "elsewhere", url(0), url(1))
	require.Equal(t, "name=root", kit.Field(provider.Get(kit.APIsV1Alpha1+"apiexportendpointslices/first"), "status", "shardSelector"))

	// A shard that does not match any more remains in the slice while it has consumers.
	provider.Patch(partitions+"/first", `{"spec":{"selector":{"matchLabels":{"name":"shard-1"}}}}`)
	has(provider, "first", url(0), url(1))
	for _, k := range []kit.WorkspaceClient{far, near} {
		k.Delete(kit.APIsV1Alpha2 + "apibindings/e")
	}
	for _, name := range []string{"e", "all", "first"} {
		has(provider, name)
	}
	provider.Delete(partitions + "/first")
	provider.UntilCondition(kit.APIsV1Alpha1+"apiexportendpointslices/first", "PartitionValid", "False PartitionInvalidReference")
	provider.Delete(kit.APIsV1Alpha2 + "apiexports/e")
	far.UntilCondition(kit.APIsV1Alpha1+"apiexportendpointslices/elsewhere", "APIExportValid", "False APIExportNotFound")
}
