package apis

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/integration/kit"
)

const (
	initializations = "APIBindingsInitialized"
)

// child makes a workspace of a type of the logical cluster, or of <path>:<type>, in it, on shard root, and
// returns its logical cluster once there is one.
func createChild(k kit.WorkspaceClient, name, wt string) kit.WorkspaceClient {
	k.T.Helper()
	return k.CreateChildOn(0, name, wt)
}

// bindings returns the bindings of the logical cluster, by the name of the export.
func bindingsByName(k kit.WorkspaceClient) map[string]*unstructured.Unstructured {
	k.T.Helper()
	all := map[string]*unstructured.Unstructured{}
	items, _, _ := unstructured.NestedSlice(k.Get(kit.APIsV1Alpha2+"apibindings").Object, "items")
	for _, item := range items {
		b := &unstructured.Unstructured{Object: item.(map[string]any)}
		all[kit.Field(b, "spec", "reference", "export", "name").(string)] = b
	}
	return all
}

// TestDefaultBindings: workspaces start with the APIs that their type binds, and have more
// when the type says so.
func TestDefaultBindings(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	k := kit.NewWorkspaceClient(e, "defaults").ForTest(t)
	k.CreateExport("widgets", k.CreateSchema("v1", "widgets", "size"))
	k.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/widgets", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get"]},{"resource":"configmaps","verbs":["*"],"defaultSelector":{"matchLabels":{"app":"widgets"}}}]}}`)
	k.CreateWorkspaceType("base", `"defaultAPIBindings":[{"path":"root:defaults","export":"widgets"}]`)
	k.Do(http.StatusCreated, http.MethodPost, kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"path":"root","name":"universal"},{"path":"root:defaults","name":"base"}]},"defaultAPIBindings":[{"export":"gadgets"}]}}`)

	// The export may come later: the workspace says that it waits for it, and goes on.
	c := createChild(k, "waiting", "apps")
	c.Eventually("it says what it waits for", func() bool {
		return kit.Condition(c.Get(kit.LogicalClusterPath), initializations) == "False APIBindingErrors"
	})
	lc := c.Get(kit.LogicalClusterPath)
	require.Equal(t, []any{"system:apibindings"}, kit.Field(lc, "status", "initializers"))
	require.Contains(t, fmt.Sprint(kit.Field(lc, "status", "conditions")), "APIExport "+k.ClusterName+":gadgets does not exist: create it")
	k.CreateExport("gadgets", k.CreateSchema("v1", "gadgets", "weight"))
	c.UntilReady()
	require.Equal(t, "True <nil>", kit.Condition(c.Get(kit.LogicalClusterPath), initializations))
	bound := bindingsByName(c)
	require.Len(t, bound, 4, "with those to tenancy and topology, which universal binds")
	widgetsOf := bound["widgets"]
	require.Regexp(t, "^widgets-[0-9a-z]{5}$", widgetsOf.GetName())
	require.Equal(t, "Bound", kit.Field(widgetsOf, "status", "phase"))
	claims, _, _ := unstructured.NestedSlice(widgetsOf.Object, "spec", "permissionClaims")
	require.Len(t, claims, 2)
	require.Equal(t, map[string]any{"matchAll": true}, claims[0].(map[string]any)["selector"])
	require.Equal(t, map[string]any{"matchLabels": map[string]any{"app": "widgets"}}, claims[1].(map[string]any)["selector"])
	c.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	// One that need not wait has all of it from its first moment as a Ready one.
	quick := createChild(k, "quick", "apps")
	quick.UntilReady()
	quick.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	far := k.CreateChildOn(1, "far", "apps")
	far.UntilReady()
	far.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))

	// What a type wants later is for new workspaces, unless it says otherwise.
	k.CreateExport("gears", k.CreateSchema("v1", "gears", "teeth"))
	k.Do(http.StatusOK, http.MethodPatch, kit.TenancyPath+"workspacetypes/base", `{"spec":{"defaultAPIBindings":[{"path":"root:defaults","export":"widgets"},{"path":"root:defaults","export":"gears"}]}}`)
	news := 0
	k.Eventually("a new workspace has what the type wants", func() bool { // once the shard has seen that
		news++
		later := createChild(k, fmt.Sprint("later-", news), "apps")
		later.UntilReady()
		return len(bindingsByName(later)) == 5
	})
	require.Len(t, bindingsByName(c), 4)
	k.Do(http.StatusOK, http.MethodPatch, kit.TenancyPath+"workspacetypes/base", `{"spec":{"defaultAPIBindingLifecycle":"Maintain"}}`)
	c.Eventually("the type is maintained", func() bool {
		return kit.Condition(c.Get(kit.LogicalClusterPath), "APIBindingsReconciled") == "True <nil>" && len(bindingsByName(c)) == 5
	})

	// So are the claims, and what somebody deletes comes back.
	k.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/widgets", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get"]}]}}`)
	c.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/"+bindingsByName(c)["gears"].GetName(), "")
	c.Eventually("the bindings are as the type wants them", func() bool {
		all := bindingsByName(c)
		claims, _, _ := unstructured.NestedSlice(all["widgets"].Object, "spec", "permissionClaims")
		return len(claims) == 1 && all["gears"] != nil && all["gears"].GetDeletionTimestamp() == nil && kit.Condition(all["gears"], "Ready") == "True <nil>"
	})
	require.Equal(t, widgetsOf.GetUID(), bindingsByName(c)["widgets"].GetUID())
}
