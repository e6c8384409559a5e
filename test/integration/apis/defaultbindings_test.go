package apis

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/integration/kit"
)

const initializations = "APIBindingsInitialized"

// bindingsByName returns the bindings of the logical cluster, by the name of the export.
func bindingsByName(k kit.WorkspaceClient) map[string]*unstructured.Unstructured {
	k.T.Helper()
	all := map[string]*unstructured.Unstructured{}
	for _, b := range kit.Items(k.Get(kit.APIsV1Alpha2 + "apibindings")) {
		all[kit.Field(&b, "spec", "reference", "export", "name").(string)] = &b
	}
	return all
}

// TestDefaultBindings checks that workspaces have the default bindings of their type, and are updated if the type requires it.
func TestDefaultBindings(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	k := kit.NewWorkspaceClient(e, "defaults").ForTest(t)
	k.CreateExport("widgets", k.CreateSchema("v1", "widgets", "size"))
	k.Patch(kit.APIsV1Alpha2+"apiexports/widgets", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get"]},{"resource":"configmaps","verbs":["*"],"defaultSelector":{"matchLabels":{"app":"widgets"}}}]}}`)
	k.CreateWorkspaceType("base", `"defaultAPIBindings":[{"path":"root:defaults","export":"widgets"}]`)
	k.Do(http.StatusCreated, http.MethodPost, kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"path":"root","name":"universal"},{"path":"root:defaults","name":"base"}]},"defaultAPIBindings":[{"export":"gadgets"}]}}`)

	// The export may be created later. The workspace reports that it waits for it.
	c := k.CreateWorkspaceOfType("waiting", "apps", 0)
	c.UntilCondition(kit.LogicalClusterPath, initializations, "False APIBindingErrors")
	lc := c.Get(kit.LogicalClusterPath)
	require.Equal(t, []any{"system:apibindings"}, kit.Field(lc, "status", "initializers"))
	require.Contains(t, fmt.Sprint(kit.Field(lc, "status", "conditions")), "APIExport "+k.ClusterName+":gadgets does not exist: create it")
	k.CreateExport("gadgets", k.CreateSchema("v1", "gadgets", "weight"))
	c.UntilReady()
	require.Equal(t, "True <nil>", kit.Condition(c.Get(kit.LogicalClusterPath), initializations))
	bound := bindingsByName(c)
	require.Len(t, bound, 4, "including those of universal to tenancy and topology")
	widgetsOf := bound["widgets"]
	require.Regexp(t, "^widgets-[0-9a-z]{5}$", widgetsOf.GetName())
	require.Equal(t, "Bound", kit.Field(widgetsOf, "status", "phase"))
	claims, _, _ := unstructured.NestedSlice(widgetsOf.Object, "spec", "permissionClaims")
	require.Len(t, claims, 2)
	require.Equal(t, map[string]any{"matchAll": true}, claims[0].(map[string]any)["selector"])
	require.Equal(t, map[string]any{"matchLabels": map[string]any{"app": "widgets"}}, claims[1].(map[string]any)["selector"])
	c.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	// If a workspace is Ready, the APIs must be served.
	quick := k.CreateWorkspaceOfType("quick", "apps", 0)
	quick.UntilReady()
	quick.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	far := k.CreateWorkspaceOfType("far", "apps", 1)
	far.UntilReady()
	far.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	// If a type changes, only new workspaces are affected, unless its lifecycle is Maintain.
	k.CreateExport("gears", k.CreateSchema("v1", "gears", "teeth"))
	k.Patch(kit.TenancyPath+"workspacetypes/base", `{"spec":{"defaultAPIBindings":[{"path":"root:defaults","export":"widgets"},{"path":"root:defaults","export":"gears"}]}}`)
	news := 0
	k.Eventually("new workspaces have the bindings of the changed type", func() bool {
		news++
		later := k.CreateWorkspaceOfType(fmt.Sprint("later-", news), "apps", 0)
		later.UntilReady()
		return len(bindingsByName(later)) == 5
	})
	require.Len(t, bindingsByName(c), 4)
	k.Patch(kit.TenancyPath+"workspacetypes/base", `{"spec":{"defaultAPIBindingLifecycle":"Maintain"}}`)
	c.Eventually("the bindings are maintained", func() bool {
		return kit.Condition(c.Get(kit.LogicalClusterPath), "APIBindingsReconciled") == "True <nil>" && len(bindingsByName(c)) == 5
	})

	// Claims are maintained, and bindings are restored if they are deleted.
	k.Patch(kit.APIsV1Alpha2+"apiexports/widgets", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get"]}]}}`)
	c.Delete(kit.APIsV1Alpha2 + "apibindings/" + bindingsByName(c)["gears"].GetName())
	c.Eventually("the bindings match the type", func() bool {
		all := bindingsByName(c)
		claims, _, _ := unstructured.NestedSlice(all["widgets"].Object, "spec", "permissionClaims")
		return len(claims) == 1 && all["gears"] != nil && all["gears"].GetDeletionTimestamp() == nil && kit.Condition(all["gears"], "Ready") == "True <nil>"
	})
	require.Equal(t, widgetsOf.GetUID(), bindingsByName(c)["widgets"].GetUID())
}
