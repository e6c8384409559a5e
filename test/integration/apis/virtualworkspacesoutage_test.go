package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

const boundGadgets = "/apis/example.org/v1/namespaces/default/gadgets"

var configMapsResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// outageViews are the views that shard-1 has of what lies there, for somebody whom rules on shard
// root let open them: those of the export e, of which a consumer has accepted the claims, and of
// two workspace types.
type outageViews struct {
	provider, consumer kit.WorkspaceClient
	// opens is the provider as who opens the views sees it on shard-1.
	opens kit.WorkspaceClient
	// starting waits for the initializer of the type starts, ending for the terminator of ends.
	starting, ending kit.WorkspaceClient
	claims           string
}

// newOutageViews makes all that is to be seen. The consumer has bound the export e.
func newOutageViews(provider, consumer kit.WorkspaceClient) outageViews {
	provider.T.Helper()
	v := outageViews{provider: provider, consumer: consumer, opens: onShard(provider, 1).As("user-2-token")}
	identity := provider.CreateExport("g", provider.CreateSchema("v1", "gadgets", "size"))
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/g", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	consumer.BindPath(http.StatusCreated, "g", "root:away", "g")
	consumer.UntilBinding("g", "Ready", "True <nil>")
	consumer.Create(boundGadgets, `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":"mine"}}`)
	consumer.Create(kit.ConfigMapsPath, `{"metadata":{"name":"claimed"}}`)
	v.claims = `[{"group":"","resource":"configmaps","verbs":["*"]%[1]s},{"group":"example.org","resource":"gadgets","identityHash":"` + identity + `","verbs":["*"]%[2]s}]`
	provider.ClaimInExport(fmt.Sprintf(v.claims, "", ""))
	v.accept("Accepted")

	const permissions = `[{"apiGroups":[""],"resources":["configmaps"],"verbs":["*"]}]`
	for name, spec := range map[string]string{"starts": `"initializer":true,"initializerPermissions":`, "ends": `"terminator":true,"terminatorPermissions":`} {
		provider.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%q},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},%s%s}}`, name, spec, permissions)
	}
	v.starting, v.ending = provider.CreateWorkspaceOfType("starting", "starts", 1), provider.CreateWorkspaceOfType("ending", "ends", 1)
	for _, waits := range []kit.WorkspaceClient{v.starting, v.ending} {
		waits.Eventually("it has something", func() bool {
			_, _ = waits.TryDo(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`) // nobody else makes it as long as it starts
			code, _ := waits.TryDo(http.MethodPost, kit.ConfigMapsPath, `{"metadata":{"name":"left"}}`)
			return code == http.StatusCreated
		})
	}
	v.untilWorkspace("ending", "Ready")
	provider.Do(http.StatusOK, http.MethodDelete, kit.TenancyPath+"workspaces/ending", "")

	provider.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"views"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":["e"],"verbs":["*"]},{"apiGroups":["tenancy.kcp.io"],"resources":["workspacetypes"],"resourceNames":["starts","ends"],"verbs":["initialize","terminate"]}]}`)
	// That they may enter is said apart, as people do.
	provider.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"enter"},"rules":[{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	for _, role := range []string{"views", "enter"} {
		provider.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":%[1]q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-2"}]}`, role)
	}
	return v
}

// accept has the consumer accept the claim on what another export defines, and that on ConfigMaps as said.
func (v outageViews) accept(configMaps string) {
	v.consumer.T.Helper()
	const state = `,"selector":{"matchAll":true},"state":%q`
	v.consumer.AcceptClaims(fmt.Sprintf(v.claims, fmt.Sprintf(state, configMaps), fmt.Sprintf(state, "Accepted")))
}

// untilWorkspace waits until a workspace of the provider has a phase, or is gone.
func (v outageViews) untilWorkspace(name, phase string) {
	v.provider.T.Helper()
	v.provider.Eventually("workspace "+name+" is "+phase, func() bool {
		code, says := v.provider.TryDo(http.MethodGet, kit.TenancyPath+"workspaces/"+name, "")
		return phase == "" && code == http.StatusNotFound || phase != "" && strings.Contains(says, `"phase":"`+phase+`"`)
	})
}

// work holds that all views are served: reads, watches, writes and documents, within the rules of
// the provider. round names what is made.
func (v outageViews) work(round string) {
	t := v.provider.T
	t.Helper()
	all, in := v.opens.ThroughExport("e", "*"), v.opens.ThroughExport("e", v.consumer.ClusterName)
	for path, something := range map[string]string{
		"/apis/example.org/v1/widgets": `"name":"a"`, "/apis/example.org/v1/gadgets": `"name":"mine"`, "/api/v1/configmaps": `"name":"claimed"`, kit.APIsV1Alpha2 + "apibindings": `"name":"e"`,
		"/apis/example.org/v1": `"gadgets"`, "/openapi/v3/apis/example.org/v1": "size",
	} {
		all.UntilShows(path, something)
		in.UntilShows(path, something)
	}
	w := watchThrough(all, configMapsResource, "")
	next(t, w, watch.Added, "claimed")
	in.Create(kit.ConfigMapsPath, `{"metadata":{"name":%q}}`, round)
	next(t, w, watch.Added, round)
	w.Stop()
	in.Create(kit.WidgetsPath, "%s", kit.Widget(round, "size", 1))
	var code int
	var says string
	in.Eventually("what the provider permits is known", func() bool {
		code, says = in.TryDo(http.MethodDelete, boundGadgets+"/mine", "")
		return code != http.StatusServiceUnavailable
	})
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "maximal permission policy")

	waits := map[string]kit.WorkspaceClient{"initializing": v.starting, "terminating": v.ending}
	for kind, name := range map[string]string{"initializing": "starts", "terminating": "ends"} {
		cluster := waits[kind].ClusterName
		typeView(v.opens, kind, name, "*").UntilShows("/apis/core.kcp.io/v1alpha1/logicalclusters", cluster)
		in := typeView(v.opens, kind, name, cluster)
		in.UntilShows(kit.ConfigMapsPath, `"name":"left"`)
		in.Do(http.StatusOK, http.MethodPatch, kit.ConfigMapsPath+"/left", `{"data":{"round":"`+round+`"}}`)
		code, says := in.TryDo(http.MethodGet, "/api/v1/secrets", "")
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "declares")
	}
	stranger := v.opens.As("user-3-token")
	for _, view := range []kit.WorkspaceClient{stranger.ThroughExport("e", "*"), typeView(stranger, "initializing", "starts", "*"), typeView(stranger, "terminating", "ends", "*")} {
		code, says := view.TryDo(http.MethodGet, "/apis", "")
		require.Equal(t, http.StatusForbidden, code, says)
	}
}

// change holds that what a consumer accepts, and what initializers and terminators do, has effect
// on open watches.
func (v outageViews) change() {
	t := v.provider.T
	t.Helper()
	w := watchThrough(v.opens.ThroughExport("e", "*"), configMapsResource, "")
	next(t, w, watch.Added, "claimed")
	v.accept("Rejected")
	next(t, w, watch.Deleted, "claimed")
	v.accept("Accepted")
	next(t, w, watch.Added, "claimed")

	initializing := watchThrough(typeView(v.opens, "initializing", "starts", "*"), logicalClustersResource, "")
	next(t, initializing, watch.Added, "cluster")
	typeView(v.opens, "initializing", "starts", v.starting.ClusterName).Do(http.StatusOK, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"initializers":[]}}`)
	next(t, initializing, watch.Deleted, "cluster")
	terminating := watchThrough(typeView(v.opens, "terminating", "ends", "*"), logicalClustersResource, "")
	next(t, terminating, watch.Added, "cluster")
	typeView(v.opens, "terminating", "ends", v.ending.ClusterName).Do(http.StatusOK, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"terminators":null}}`)
	next(t, terminating, watch.Deleted, "cluster")
}

// converge holds that what has changed is known to the others, now that they are back, and what
// they change is here.
func (v outageViews) converge() {
	v.provider.T.Helper()
	v.untilWorkspace("starting", "Ready")
	v.untilWorkspace("ending", "")
	v.opens.ThroughExport("e", "*").UntilShows("/api/v1/configmaps", `"name":"claimed"`)
	v.provider.Do(http.StatusOK, http.MethodDelete, kit.RBACPath+"clusterrolebindings/views", "")
	v.opens.Eventually("the right is gone", func() bool {
		code, _ := v.opens.ThroughExport("e", "*").TryDo(http.MethodGet, "/api/v1/configmaps", "")
		return code == http.StatusForbidden
	})
}

// testChangesMeanwhile: what a provider changes while the consumer's shard is down is followed when
// that starts.
func testChangesMeanwhile(t *testing.T, v outageViews) {
	t.Helper()
	provider, k := v.provider, v.consumer
	shard := provider.Component("shard-1")
	shard.Stop()
	third, more := provider.CreateSchema("v3", "widgets", "width"), provider.CreateSchema("v1", "others", "size")
	provider.Do(http.StatusOK, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", fmt.Sprintf(`{"metadata":{"annotations":{"extra.apis.kcp.io/note":"new"}},"spec":{
		"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}},{"group":"example.org","name":"others","schema":%q,"storage":{"crd":{}}}],
		"permissionClaims":[{"group":"","resource":"configmaps","verbs":["get"]},{"group":"","resource":"secrets","verbs":["get"]}]}}`, third, more))
	provider.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apiexports/g", "")
	shard.Start()

	k.UntilShows(kit.APIsV1Alpha2+"apibindings/e", `"name":"`+third+`"`)
	k.UntilShows(kit.APIsV1Alpha2+"apibindings/e", `"name":"`+more+`"`)
	k.UntilShows(kit.APIsV1Alpha2+"apibindings/e", `"extra.apis.kcp.io/note":"new"`)
	bound := k.UntilBinding("e", "PermissionClaimsValid", "False InvalidPermissionClaims") // that on gadgets is not made any more
	require.Len(t, kit.Field(bound, "status", "exportPermissionClaims"), 2)
	require.Equal(t, []any{map[string]any{"group": "", "identityHash": "", "resource": "configmaps", "verbs": []any{"get"}, "selector": map[string]any{"matchAll": true}}}, kit.Field(bound, "status", "appliedPermissionClaims"))
	k.UntilBinding("g", "APIExportValid", "False APIExportNotFound")
	k.UntilShows("/apis/example.org/v1", `"others"`)
	k.Eventually("the new schema is served", func() bool {
		_, says := k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("x", "width", 4))
		return strings.Contains(says, `"width":4`)
	})

	// In the view, too; the administrator opens it.
	all, in := onShard(provider, 1).ThroughExport("e", "*"), onShard(provider, 1).ThroughExport("e", k.ClusterName)
	in.UntilShows(kit.ConfigMapsPath+"/claimed", `"name":"claimed"`)
	all.UntilShows("/apis/example.org/v1/others", `"items":[]`)
	for path, want := range map[string]int{"/api/v1/configmaps": http.StatusNotFound, "/api/v1/secrets": http.StatusNotFound, "/apis/example.org/v1/gadgets": http.StatusNotFound} {
		all.Eventually(path+" of all is not claimed for list", func() bool {
			code, _ := all.TryDo(http.MethodGet, path, "")
			return code == want
		})
	}
	k.Do(http.StatusOK, http.MethodDelete, boundGadgets+"/mine", "")
}
