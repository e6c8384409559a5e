package apis

import (
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
