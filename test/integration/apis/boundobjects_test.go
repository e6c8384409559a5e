package apis

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestIncompatibleSchema checks an export that specifies a schema with which the objects of its consumers could not be read. Bindings
// keep the former schema and report it, consumers and the provider can read and delete everything, and a binding can be deleted.
func TestIncompatibleSchema(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, k, other := kit.NewWorkspaceClient(e, "evolving-provider"), kit.NewWorkspaceClient(e, "evolving-consumer"), kit.NewWorkspaceClient(e, "evolving-other")
	define := func(prefix, version, scope, kind string) {
		provider.Create(kit.APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"example.org","scope":%q,"names":{"plural":"widgets","singular":"widget","kind":%q,"listKind":%q},"versions":[{"name":%q,"served":true,"storage":true,"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}]}}`,
			prefix+".widgets.example.org", scope, kind, kind+"List", version)
	}
	define("one", "v1", "Namespaced", "Widget")
	identity := provider.CreateExport("widgets", "one.widgets.example.org")
	k.Bind("widgets", provider, "widgets")
	k.UntilBinding("widgets", "BindingUpToDate", "True <nil>")
	for _, name := range []string{"free", "kept"} {
		k.Create(kit.WidgetsPath, `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":%q,"finalizers":["example.org/wait"]}}`, name)
	}
	release := func(name string) {
		k.Patch(kit.WidgetsPath+"/"+name, `{"metadata":{"finalizers":null}}`)
	}
	release("free")
	everywhere := kit.WorkspaceClient{Env: e, Config: k.Config, ClusterName: "*"}
	for prefix, field := range map[string]string{"version": "spec.versions", "scope": "spec.scope", "kind": "spec.names.kind"} {
		switch prefix {
		case "version":
			define(prefix, "v2", "Namespaced", "Widget")
		case "scope":
			define(prefix, "v1", "Cluster", "Widget")
		case "kind":
			define(prefix, "v1", "Namespaced", "Gizmo")
		}
		provider.Patch(kit.APIsV1Alpha2+"apiexports/widgets", `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"`+prefix+`.widgets.example.org","storage":{"crd":{}}}]}}`)
		k.UntilShows(kit.APIsV1Alpha2+"apibindings/widgets", field)
		binding := k.UntilBinding("widgets", "BindingUpToDate", "False APIResourceSchemaInvalid")
		require.Equal(t, "True <nil>", kit.Condition(binding, "Ready"))
		require.Len(t, kit.ItemNames(k.Get(kit.WidgetsPath)), 2)
		require.Len(t, kit.ItemNames(everywhere.Get("/apis/example.org/v1/widgets:"+identity)), 2)
	}
	// Wildcard requests of the provider read the objects of all consumers with one schema.
	other.Bind("widgets", provider, "widgets")
	other.UntilBinding("widgets", "InitialBindingCompleted", "False APIResourceSchemaInvalid")
	require.Len(t, kit.ItemNames(everywhere.Get("/apis/example.org/v1/widgets:"+identity)), 2)

	k.Delete(kit.APIsV1Alpha2 + "apibindings/widgets")
	k.UntilBinding("widgets", "BindingResourceDeleteSuccess", "False SomeFinalizersRemain")
	release("kept")
	k.UntilDeleted(kit.APIsV1Alpha2 + "apibindings/widgets")
}

// TestUnreadableObjectsAreReported checks that the LogicalCluster reports an object that a new default would expand without a bound,
// until the object is deleted.
func TestUnreadableObjectsAreReported(t *testing.T) {
	t.Parallel()
	k := kit.NewWorkspaceClient(kit.Shared(t), "unreadable")
	version := func(defaults string) string {
		return `[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"list":{"type":"array","items":{"type":"object","properties":{"of":{"type":"object","x-kubernetes-preserve-unknown-fields":true` + defaults + `}}}}}}}}]`
	}
	const things = "/apis/unreadable.example/v1/things"
	k.Create(kit.DefinitionsPath, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.unreadable.example"},"spec":{"group":"unreadable.example","scope":"Cluster","names":{"plural":"things","singular":"thing","kind":"Thing"},"versions":%s}}`, version(""))
	k.Create(things, `{"apiVersion":"unreadable.example/v1","kind":"Thing","metadata":{"name":"large"},"list":[{}%s]}`, strings.Repeat(",{}", 60_000))
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprintf(`"k%d":1`, i))
	}
	k.Patch(kit.DefinitionsPath+"/things.unreadable.example", `{"spec":{"versions":`+version(`,"default":{`+strings.Join(keys, ",")+`}`)+`}}`)

	k.Eventually("the object cannot be read", func() bool {
		code, message := k.TryDo(http.MethodGet, things+"/large", "")
		return code == http.StatusInternalServerError && strings.Contains(message, "StorageReadError")
	})
	const logicalCluster = kit.LogicalClusterPath
	k.UntilCondition(logicalCluster, "ObjectsReadable", "False UnreadableObjects")
	require.Contains(t, fmt.Sprint(kit.Field(k.Get(logicalCluster), "status", "conditions")), "things.unreadable.example large")
	k.Delete(things + "/large")
	k.Eventually("the condition is True after the deletion", func() bool {
		return strings.HasPrefix(kit.Condition(k.Get(logicalCluster), "ObjectsReadable"), "True")
	})
}

// TestListsOfBoundAPIs checks that lists of bound APIs from watch caches are counted in the metric that kcp uses.
func TestListsOfBoundAPIs(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, k := kit.NewWorkspaceClient(e, "lists-provider").ForTest(t), kit.NewWorkspaceClient(e, "lists-consumer").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "doodads", "size"))
	k.BindReady("e", provider, "e")
	counted := func() (n float64) {
		text := kit.RequireCode(t, k.Config, kit.Request{Path: "/metrics"}, http.StatusOK)
		_, after, ok := strings.Cut(string(text), `apiserver_cache_list_total{group="unexpected",index="",resource="unexpected"} `)
		if ok {
			line, _, _ := strings.Cut(after, "\n")
			var err error
			n, err = strconv.ParseFloat(line, 64)
			require.NoError(t, err)
		}
		return n
	}
	const path, lists = "/apis/example.org/v1/doodads", 5
	k.Get(path)
	before := counted()
	all := k.In("*")
	for range lists {
		k.Get(path + "?resourceVersion=0")
		all.Get(path + ":" + identity + "?resourceVersion=0")
	}
	require.GreaterOrEqual(t, counted(), before+2*lists)
}
