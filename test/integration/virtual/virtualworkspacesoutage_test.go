package virtual

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

// outageVirtualWorkspaces uses virtual workspaces on shard-1 as a user that is authorized by rules on shard root: those of the export e
// with claims that a consumer has accepted, and of two workspace types.
type outageVirtualWorkspaces struct {
	provider, consumer kit.WorkspaceClient
	// opens is the provider's workspace, as read by the user on shard-1.
	opens kit.WorkspaceClient
	// starting waits for the initializer of the type starts, ending for the terminator of ends.
	starting, ending kit.WorkspaceClient
	claims           string
}

// newOutageVirtualWorkspaces creates the objects. The consumer has bound the export e.
func newOutageVirtualWorkspaces(provider, consumer kit.WorkspaceClient) outageVirtualWorkspaces {
	provider.T.Helper()
	v := outageVirtualWorkspaces{provider: provider, consumer: consumer, opens: kit.OnShard(provider, 1).As("user-2-token")}
	identity := provider.CreateExport("g", provider.CreateSchema("v1", "gadgets", "size"))
	provider.Patch(kit.APIsV1Alpha2+"apiexports/g", `{"spec":{"maximalPermissionPolicy":{"local":{}}}}`)
	consumer.BindPathReady("g", "root:outage", "g")
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
		waits.Eventually("the workspace contains a ConfigMap", func() bool {
			_, _ = waits.TryDo(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"default"}}`) // created by the system after the initialization only
			code, _ := waits.TryDo(http.MethodPost, kit.ConfigMapsPath, `{"metadata":{"name":"left"}}`)
			return code == http.StatusCreated
		})
	}
	v.untilWorkspace("ending", "Ready")
	provider.Delete(kit.TenancyPath + "workspaces/ending")

	provider.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"content"},"rules":[{"apiGroups":["apis.kcp.io"],"resources":["apiexports/content"],"resourceNames":["e"],"verbs":["*"]},{"apiGroups":["tenancy.kcp.io"],"resources":["workspacetypes"],"resourceNames":["starts","ends"],"verbs":["initialize","terminate"]}]}`)
	// Access to the workspace is a separate role.
	provider.Create(kit.RBACPath+"clusterroles", `{"metadata":{"name":"access"},"rules":[{"nonResourceURLs":["/"],"verbs":["access"]}]}`)
	for _, role := range []string{"content", "access"} {
		provider.BindRole(role, role, "user-2")
	}
	return v
}

// accept sets the state of the claim on ConfigMaps, and accepts the claim on another export.
func (v outageVirtualWorkspaces) accept(configMaps string) {
	v.consumer.T.Helper()
	const state = `,"selector":{"matchAll":true},"state":%q`
	v.consumer.AcceptClaims(fmt.Sprintf(v.claims, fmt.Sprintf(state, configMaps), fmt.Sprintf(state, "Accepted")))
}

// untilWorkspace waits until a workspace of the provider has a phase or, if phase is "", does not exist.
func (v outageVirtualWorkspaces) untilWorkspace(name, phase string) {
	v.provider.T.Helper()
	v.provider.Eventually("workspace "+name+" is "+phase, func() bool {
		code, message := v.provider.TryDo(http.MethodGet, kit.TenancyPath+"workspaces/"+name, "")
		return phase == "" && code == http.StatusNotFound || phase != "" && strings.Contains(message, `"phase":"`+phase+`"`)
	})
}

// work checks reads, watches, writes, discovery and OpenAPI of all virtual workspaces, within the rules of the provider. round is the
// name of created objects.
func (v outageVirtualWorkspaces) work(round string) {
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
	w := kit.WatchThrough(all, configMapsResource, "")
	kit.Next(t, w, watch.Added, "claimed")
	in.Create(kit.ConfigMapsPath, `{"metadata":{"name":%q}}`, round)
	kit.Next(t, w, watch.Added, round)
	w.Stop()
	in.Create(kit.WidgetsPath, "%s", kit.Widget(round, "size", 1))
	message := in.UntilCode(http.StatusForbidden, http.MethodDelete, boundGadgets+"/mine", "")
	require.Contains(t, message, "maximal permission policy")

	waits := map[string]kit.WorkspaceClient{"initializing": v.starting, "terminating": v.ending}
	for kind, name := range map[string]string{"initializing": "starts", "terminating": "ends"} {
		cluster := waits[kind].ClusterName
		typeVirtualWorkspace(v.opens, kind, name, "*").UntilShows("/apis/core.kcp.io/v1alpha1/logicalclusters", cluster)
		in := typeVirtualWorkspace(v.opens, kind, name, cluster)
		in.UntilShows(kit.ConfigMapsPath, `"name":"left"`)
		in.Patch(kit.ConfigMapsPath+"/left", `{"data":{"round":"`+round+`"}}`)
		require.Contains(t, in.RequireCode(http.StatusForbidden, http.MethodGet, "/api/v1/secrets", ""), "declares")
	}
	stranger := v.opens.As("user-3-token")
	for _, vw := range []kit.WorkspaceClient{stranger.ThroughExport("e", "*"), typeVirtualWorkspace(stranger, "initializing", "starts", "*"), typeVirtualWorkspace(stranger, "terminating", "ends", "*")} {
		vw.RequireCode(http.StatusForbidden, http.MethodGet, "/apis", "")
	}
}

// change checks that claims, initializers and terminators take effect on open watches.
func (v outageVirtualWorkspaces) change() {
	t := v.provider.T
	t.Helper()
	w := kit.WatchThrough(v.opens.ThroughExport("e", "*"), configMapsResource, "")
	kit.Next(t, w, watch.Added, "claimed")
	v.accept("Rejected")
	kit.Next(t, w, watch.Deleted, "claimed")
	v.accept("Accepted")
	kit.Next(t, w, watch.Added, "claimed")

	initializing := kit.WatchThrough(typeVirtualWorkspace(v.opens, "initializing", "starts", "*"), logicalClustersResource, "")
	kit.Next(t, initializing, watch.Added, "cluster")
	typeVirtualWorkspace(v.opens, "initializing", "starts", v.starting.ClusterName).Patch(kit.LogicalClusterPath+"/status", `{"status":{"initializers":[]}}`)
	kit.Next(t, initializing, watch.Deleted, "cluster")
	terminating := kit.WatchThrough(typeVirtualWorkspace(v.opens, "terminating", "ends", "*"), logicalClustersResource, "")
	kit.Next(t, terminating, watch.Added, "cluster")
	typeVirtualWorkspace(v.opens, "terminating", "ends", v.ending.ClusterName).Patch(kit.LogicalClusterPath+"/status", `{"status":{"terminators":null}}`)
	kit.Next(t, terminating, watch.Deleted, "cluster")
}

// converge checks that changes are exchanged with the other servers after they have started.
func (v outageVirtualWorkspaces) converge() {
	v.provider.T.Helper()
	v.untilWorkspace("starting", "Ready")
	v.untilWorkspace("ending", "")
	v.opens.ThroughExport("e", "*").UntilShows("/api/v1/configmaps", `"name":"claimed"`)
	v.provider.Delete(kit.RBACPath + "clusterrolebindings/content")
	v.opens.ThroughExport("e", "*").UntilCode(http.StatusForbidden, http.MethodGet, "/api/v1/configmaps", "")
}

// testChangesMeanwhile checks that a shard that starts applies changes of a provider that were made while it was stopped.
func testChangesMeanwhile(t *testing.T, v outageVirtualWorkspaces) {
	t.Helper()
	provider, k := v.provider, v.consumer
	shard := provider.Component("shard-1")
	shard.Stop()
	third, more := provider.CreateSchema("v3", "widgets", "width"), provider.CreateSchema("v1", "others", "size")
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", fmt.Sprintf(`{"metadata":{"annotations":{"extra.apis.kcp.io/note":"new"}},"spec":{
		"resources":[{"group":"example.org","name":"widgets","schema":%q,"storage":{"crd":{}}},{"group":"example.org","name":"others","schema":%q,"storage":{"crd":{}}}],
		"permissionClaims":[{"group":"","resource":"configmaps","verbs":["get"]},{"group":"","resource":"secrets","verbs":["get"]}]}}`, third, more))
	provider.Delete(kit.APIsV1Alpha2 + "apiexports/g")
	shard.Start()

	k.UntilShows(kit.APIsV1Alpha2+"apibindings/e", `"name":"`+third+`"`)
	k.UntilShows(kit.APIsV1Alpha2+"apibindings/e", `"name":"`+more+`"`)
	k.UntilShows(kit.APIsV1Alpha2+"apibindings/e", `"extra.apis.kcp.io/note":"new"`)
	bound := k.UntilBinding("e", "PermissionClaimsValid", "False InvalidPermissionClaims") // the claim on gadgets was removed
	require.Len(t, kit.Field(bound, "status", "exportPermissionClaims"), 2)
	require.Equal(t, []any{map[string]any{"group": "", "identityHash": "", "resource": "configmaps", "verbs": []any{"get"}, "selector": map[string]any{"matchAll": true}}}, kit.Field(bound, "status", "appliedPermissionClaims"))
	k.UntilBinding("g", "APIExportValid", "False APIExportNotFound")
	k.UntilShows("/apis/example.org/v1", `"others"`)
	k.Eventually("the new schema is served", func() bool {
		_, message := k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("x", "width", 4))
		return strings.Contains(message, `"width":4`)
	})

	// The virtual workspace, as an administrator.
	all, in := kit.OnShard(provider, 1).ThroughExport("e", "*"), kit.OnShard(provider, 1).ThroughExport("e", k.ClusterName)
	in.UntilShows(kit.ConfigMapsPath+"/claimed", `"name":"claimed"`)
	all.UntilShows("/apis/example.org/v1/others", `"items":[]`)
	for path, want := range map[string]int{"/api/v1/configmaps": http.StatusNotFound, "/api/v1/secrets": http.StatusNotFound, "/apis/example.org/v1/gadgets": http.StatusNotFound} {
		all.UntilCode(want, http.MethodGet, path, "")
	}
	k.Delete(boundGadgets + "/mine")
}
