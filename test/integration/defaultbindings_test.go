package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	tenancyV1       = "/apis/tenancy.kcp.io/v1alpha1/"
	clusterItself   = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
	initializations = "APIBindingsInitialized"
)

// workspaceType makes a type that extends universal, with more in its spec.
func (k apiKinds) workspaceType(name, spec string) {
	k.t.Helper()
	k.create(tenancyV1+"workspacetypes", "%s", workspaceTypeWith(name, spec))
}

func workspaceTypeWith(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%q},"spec":{"extend":{"with":[{"path":"root","name":"universal"}]},%s}}`, name, spec)
}

// child makes a workspace of a type of the logical cluster, or of <path>:<type>, in it, on shard root, and
// returns its logical cluster once there is one.
func (k apiKinds) child(name, wt string) apiKinds {
	k.t.Helper()
	return k.childOn(0, name, wt)
}

// childOn is child on a shard.
func (k apiKinds) childOn(shard int, name, wt string) apiKinds {
	k.t.Helper()
	path := field(k.get(clusterItself), "metadata", "annotations", "kcp.io/path")
	if of, elsewhere, ok := strings.Cut(wt, ":"); ok {
		path, wt = of, elsewhere
	}
	k.create(tenancyV1+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"type":{"name":%q,"path":%q},"location":{"selector":{"matchLabels":{"name":%q}}}}}`,
		name, wt, path, []string{"root", "shard-1"}[shard])
	c := k
	c.config = k.Shard(shard)
	k.eventually("workspace "+name+" has a logical cluster", func() bool {
		c.cluster, _ = field(k.get(tenancyV1+"workspaces/"+name), "spec", "cluster").(string)
		if c.cluster == "" {
			return false
		}
		code, _ := c.status(http.MethodGet, clusterItself, "")
		return code == http.StatusOK
	})
	return c
}

func (k apiKinds) untilReady() {
	k.t.Helper()
	k.eventually("the logical cluster is Ready", func() bool { return field(k.get(clusterItself), "status", "phase") == "Ready" })
}

// bindings returns the bindings of the logical cluster, by the name of the export.
func (k apiKinds) bindings() map[string]*unstructured.Unstructured {
	k.t.Helper()
	all := map[string]*unstructured.Unstructured{}
	items, _, _ := unstructured.NestedSlice(k.get(apisV2+"apibindings").Object, "items")
	for _, item := range items {
		b := &unstructured.Unstructured{Object: item.(map[string]any)}
		all[field(b, "spec", "reference", "export", "name").(string)] = b
	}
	return all
}

// TestDefaultBindings: workspaces start with the APIs that their type binds, and have more
// when the type says so.
func TestDefaultBindings(t *testing.T) {
	e := newEnv(t, two.Get(t))
	k := newAPIKinds(e, "defaults").in(t)
	k.export("widgets", k.schema("v1", "widgets", "size"))
	k.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/widgets", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get"]},{"resource":"configmaps","verbs":["*"],"defaultSelector":{"matchLabels":{"app":"widgets"}}}]}}`)
	k.workspaceType("base", `"defaultAPIBindings":[{"path":"root:defaults","export":"widgets"}]`)
	k.ask(http.StatusCreated, http.MethodPost, tenancyV1+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"path":"root","name":"universal"},{"path":"root:defaults","name":"base"}]},"defaultAPIBindings":[{"export":"gadgets"}]}}`)

	// The export may come later: the workspace says that it waits for it, and goes on.
	c := k.child("waiting", "apps")
	c.eventually("it says what it waits for", func() bool {
		return condition(c.get(clusterItself), initializations) == "False APIBindingErrors"
	})
	lc := c.get(clusterItself)
	require.Equal(t, []any{"system:apibindings"}, field(lc, "status", "initializers"))
	require.Contains(t, fmt.Sprint(field(lc, "status", "conditions")), "APIExport "+k.cluster+":gadgets does not exist: create it")
	k.export("gadgets", k.schema("v1", "gadgets", "weight"))
	c.untilReady()
	require.Equal(t, "True <nil>", condition(c.get(clusterItself), initializations))
	bound := c.bindings()
	require.Len(t, bound, 4, "with those to tenancy and topology, which universal binds")
	widgetsOf := bound["widgets"]
	require.Regexp(t, "^widgets-[0-9a-z]{5}$", widgetsOf.GetName())
	require.Equal(t, "Bound", field(widgetsOf, "status", "phase"))
	claims, _, _ := unstructured.NestedSlice(widgetsOf.Object, "spec", "permissionClaims")
	require.Len(t, claims, 2)
	require.Equal(t, map[string]any{"matchAll": true}, claims[0].(map[string]any)["selector"])
	require.Equal(t, map[string]any{"matchLabels": map[string]any{"app": "widgets"}}, claims[1].(map[string]any)["selector"])
	c.create(widgets, "%s", widget("a", "size", 1))

	// One that need not wait has all of it from its first moment as a Ready one.
	quick := k.child("quick", "apps")
	quick.untilReady()
	quick.create(widgets, "%s", widget("a", "size", 1))

	far := k.childOn(1, "far", "apps")
	far.untilReady()
	far.create(widgets, "%s", widget("a", "size", 1))

	// What a type wants later is for new workspaces, unless it says otherwise.
	k.export("gears", k.schema("v1", "gears", "teeth"))
	k.ask(http.StatusOK, http.MethodPatch, tenancyV1+"workspacetypes/base", `{"spec":{"defaultAPIBindings":[{"path":"root:defaults","export":"widgets"},{"path":"root:defaults","export":"gears"}]}}`)
	news := 0
	k.eventually("a new workspace has what the type wants", func() bool { // once the shard has seen that
		news++
		later := k.child(fmt.Sprint("later-", news), "apps")
		later.untilReady()
		return len(later.bindings()) == 5
	})
	require.Len(t, c.bindings(), 4)
	k.ask(http.StatusOK, http.MethodPatch, tenancyV1+"workspacetypes/base", `{"spec":{"defaultAPIBindingLifecycle":"Maintain"}}`)
	c.eventually("the type is maintained", func() bool {
		return condition(c.get(clusterItself), "APIBindingsReconciled") == "True <nil>" && len(c.bindings()) == 5
	})

	// So are the claims, and what somebody deletes comes back.
	k.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/widgets", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get"]}]}}`)
	c.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/"+c.bindings()["gears"].GetName(), "")
	c.eventually("the bindings are as the type wants them", func() bool {
		all := c.bindings()
		claims, _, _ := unstructured.NestedSlice(all["widgets"].Object, "spec", "permissionClaims")
		return len(claims) == 1 && all["gears"] != nil && all["gears"].GetDeletionTimestamp() == nil && condition(all["gears"], "Ready") == "True <nil>"
	})
	require.Equal(t, widgetsOf.GetUID(), c.bindings()["widgets"].GetUID())
}

// TestDefaultBindingsOfStrangers: a type binds nothing that its author may not bind, and
// does not tell what there is.
func TestDefaultBindingsOfStrangers(t *testing.T) {
	e := newEnv(t, two.Get(t))
	k, provider := newAPIKinds(e, "defaults-tenant").in(t), newAPIKinds(e, "defaults-provider").in(t)
	provider.export("widgets", provider.schema("v1", "widgets", "size"))
	const subject = `"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]`
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	k.create(rbac+"clusterrolebindings", `{"metadata":{"name":"tenant"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},`+subject+`}`)
	tenant := k.as("user-2-token")
	tenant.eventually("the tenant may write types", func() bool {
		code, _ := tenant.status(http.MethodPost, tenancyV1+"workspacetypes", workspaceTypeWith("first", `"limitAllowedChildren":{"none":true}`))
		return code == http.StatusCreated
	})
	denial := func(path, export string) string {
		code, says := tenant.status(http.MethodPost, tenancyV1+"workspacetypes", workspaceTypeWith("stolen", fmt.Sprintf(`"defaultAPIBindings":[{"path":%q,"export":%q}]`, path, export)))
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "no permission to bind to export "+path+":"+export)
		return says
	}
	require.Len(t, denial("root:defaults-provider", "widgets"), len(denial("root:defaults-provider", "wodgets")))
	require.Len(t, denial("root:defaults-provider", "widgets"), len(denial("root:defaults-nowheres", "widgets")))
	tenant.ask(http.StatusForbidden, http.MethodPatch, tenancyV1+"workspacetypes/first", `{"spec":{"defaultAPIBindings":[{"path":"root:defaults-provider","export":"widgets"}]}}`)

	provider.create(rbac+"clusterroles", `{"metadata":{"name":"bind"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports"],"resourceNames":["widgets"],"verbs":["bind"]}]}`)
	provider.create(rbac+"clusterrolebindings", `{"metadata":{"name":"bind"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bind"},`+subject+`}`)
	tenant.eventually("who may bind may write such a type", func() bool {
		code, _ := tenant.status(http.MethodPost, tenancyV1+"workspacetypes", workspaceTypeWith("mine", `"defaultAPIBindings":[{"path":"root:defaults-provider","export":"widgets"}]`))
		return code == http.StatusCreated
	})

	// Who makes workspaces of the type may not bind the export, and gets what the type binds.
	k.create(rbac+"clusterrolebindings", "%s", `{"metadata":{"name":"maker"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},`+strings.Replace(subject, "user-2", "user-3", 1)+`}`)
	maker := k.as("user-3-token")
	maker.eventually("the maker has rights", func() bool {
		code, _ := maker.status(http.MethodGet, apisV2+"apibindings", "")
		return code == http.StatusOK
	})
	require.Contains(t, maker.bindPath(http.StatusForbidden, "own", "root:defaults-provider", "widgets"), "no permission to bind")
	made := maker.child("made", "mine")
	made.untilReady()
	require.Equal(t, "Bound", field(made.bindings()["widgets"], "status", "phase"))
}
