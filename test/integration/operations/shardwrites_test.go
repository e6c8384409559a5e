package operations

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestShardsDoNotWriteToOthers checks that shards write to no other shard when provider and consumer are on different shards. They only
// request access reviews, and update their own Shard and heartbeat in root.
func TestShardsDoNotWriteToOthers(t *testing.T) {
	t.Parallel()
	e := sharedWithEverything(t)
	for shard := range 2 {
		t.Run(fmt.Sprintf("provider on shard %d", shard), func(t *testing.T) { testAcrossShards(t, e, shard) })
	}
	for _, server := range []string{"root", "shard-1"} {
		reviews, writes := 0, 0
		for _, event := range auditLog(t, server) {
			by, isShard := strings.CutPrefix(event.User.Username, "system:shard:")
			switch {
			case !isShard: // clients of tests
				require.Regexp(t, `^(shard-admin|kcp-admin|user-\d)$`, event.User.Username, "%s %s at %s", event.Verb, event.RequestURI, server)
			case by == server, event.Verb == "get", event.Verb == "list":
			case event.ObjectRef != nil && event.ObjectRef.Resource == "subjectaccessreviews":
				reviews++
			default:
				writes++
				require.True(t, server == "root" && aboutItself(event, by), "%s writes to %s: %s %s", by, server, event.Verb, event.RequestURI)
			}
		}
		require.Positive(t, reviews, "requests of the other shard are recorded at %s", server)
		require.Equal(t, server == "root", writes > 0, "writes of shards to %s", server)
	}
	// On the cache server, each shard writes its own objects.
	var uses []string
	for _, event := range auditLog(t, "cache-server") {
		by, isShard := strings.CutPrefix(event.User.Username, "system:shard:")
		if event.Verb == "get" {
			continue
		}
		if !isShard {
			require.Equal(t, "system:apiserver", event.User.Username, "%s %s", event.Verb, event.RequestURI)
			continue
		}
		require.True(t, strings.HasPrefix(event.RequestURI, "/services/cache/shards/"+by+"/"), "%s writes %s", by, event.RequestURI)
		if event.ObjectRef != nil && event.ObjectRef.Resource == "exportuses" {
			uses = append(uses, event.Verb+" "+by)
		}
	}
	for _, use := range []string{"create root", "create shard-1", "delete root", "delete shard-1"} {
		require.Contains(t, uses, use, "both shards must report their consumers")
	}
}

// aboutItself reports whether a write in root is to the shard's own Shard or heartbeat.
func aboutItself(event auditv1.Event, shard string) bool {
	ref, in := event.ObjectRef, event.Annotations["kcp.io/cluster"]
	if ref == nil || in != "root" {
		return false
	}
	switch ref.Resource {
	case "shards":
		return ref.Name == shard || ref.Name == "" && event.Verb == "create" // admission checks the name
	case "leases":
		return ref.Namespace == "kube-system" && (ref.Name == "shard-"+shard || ref.Name == "" && event.Verb == "create")
	}
	return false
}

// testAcrossShards creates, changes and deletes an export and a binding to it from the other shard, in a workspace below that of the
// provider.
func testAcrossShards(t *testing.T, e *kit.Env, shard int) {
	other, home := 1-shard, fmt.Sprint("apart-", shard)
	provider := kit.NewWorkspaceClientOn(e, home, shard).ForTest(t)
	provider.VirtualWorkspaceConfig = e.Shard(other)
	k := kit.WorkspaceClient{Env: provider.Env, Config: e.Shard(other), ClusterName: e.WorkspaceOn("root:"+home, "consumer", []string{"root", "shard-1"}[other]).Spec.Cluster}
	first, second := provider.CreateSchema("v1", "widgets", "size"), provider.CreateSchema("v2", "widgets", "weight")
	provider.CreateExport("e", first)
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.ClaimInExport(`[` + claim + `}]`)

	// A binding by an administrator, and one without permission, which requires a review on the provider's shard.
	tenant := k.BindAdmin("user-1")
	tenant.UntilCode(http.StatusOK, http.MethodGet, kit.APIsV1Alpha2+"apibindings", "")
	require.Contains(t, tenant.BindPath(http.StatusForbidden, "e", "root:"+home, "e"), "no permission to bind")
	k.BindPathReady("e", "root:"+home, "e")
	k.Create(kit.WidgetsPath, "%s", kit.Widget("a", "size", 1))
	k.CreateEndpointSlice("elsewhere", provider.ClusterName, "")
	endpoints := func(want ...any) {
		t.Helper()
		of := func(in kit.WorkspaceClient, slice string) bool {
			found, _ := kit.Field(in.Get(kit.APIsV1Alpha1+"apiexportendpointslices/"+slice), "status", "endpoints").([]any)
			return fmt.Sprint(found) == fmt.Sprintf("%v", want)
		}
		k.Eventually(fmt.Sprintf("the slices have %v", want), func() bool { return of(provider, "e") && of(k, "elsewhere") })
	}
	endpoints(map[string]any{"url": e.VirtualWorkspaces(other) + "/services/apiexport/" + provider.ClusterName + "/e"})

	// Claims, and writes through the virtual workspace.
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	vw := provider.ThroughExport("e", k.ClusterName)
	vw.UntilShows("/api/v1/configmaps", `"name":"kube-root-ca.crt"`)
	vw.Create(kit.ConfigMapsPath, `{"metadata":{"name":"claimed"}}`)
	vw.Patch(kit.WidgetsPath+"/a", `{"spec":{"size":2}}`)

	// A change of the export, and a new workspace with a default binding.
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", `{"metadata":{"annotations":{"extra.apis.kcp.io/a":"b"}},"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"`+second+`","storage":{"crd":{}}}]}}`)
	k.Eventually("the new schema is served", func() bool { return kit.Field(k.Get(kit.WidgetsPath+"/a"), "spec", "size") == nil })
	k.Patch(kit.WidgetsPath+"/a", `{"spec":{"weight":3}}`)
	provider.CreateWorkspaceType("apps", `"defaultAPIBindings":[{"export":"e"}],"defaultAPIBindingLifecycle":"Maintain"`)
	started := provider.CreateWorkspaceOfType("started", "apps", other)
	started.UntilReady()
	started.Create(kit.WidgetsPath, "%s", kit.Widget("a", "weight", 1))

	// Deletion.
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Rejected"}]`)
	provider.DeleteAndWait(kit.TenancyPath + "workspaces/started")
	k.DeleteAndWait(kit.APIsV1Alpha2 + "apibindings/e")
	endpoints()
	provider.Delete(kit.APIsV1Alpha2 + "apiexports/e")
	for _, schema := range []string{first, second} {
		provider.Delete(kit.APIsV1Alpha1 + "apiresourceschemas/" + schema)
	}
	root := kit.WorkspaceClient{Env: provider.Env, Config: e.Proxy(), ClusterName: "root"}
	root.DeleteAndWait(kit.TenancyPath + "workspaces/" + home)
	k.RequireCode(http.StatusNotFound, http.MethodGet, kit.LogicalClusterPath, "")
}
