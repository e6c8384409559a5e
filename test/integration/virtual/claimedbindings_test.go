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

// testClaimOfBindings checks that a provider without an accepted claim on apibindings reads the bindings to its export, and with one
// those that the claim selects.
func testClaimOfBindings(t *testing.T, e *kit.Env, shard int) {
	provider, _, consumers := kit.ConsumersOn(t, e, shard, "bindings", 2)
	one, two := consumers[0], consumers[1]
	other := kit.NewWorkspaceClient(e, fmt.Sprint("bindings-other-", shard)).ForTest(t)
	other.CreateExport("gadgets", other.CreateSchema("v1", "gadgets", "size"))
	for _, k := range consumers {
		k.BindReady("gadgets", other, "gadgets")
	}
	all, inOne, inTwo := provider.ThroughExport("e", "*"), provider.ThroughExport("e", one.ClusterName), provider.ThroughExport("e", two.ClusterName)
	const path = kit.APIsV1Alpha2 + "apibindings"
	w := kit.WatchThrough(all, schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}, "")
	kit.Next(t, w, watch.Added, "e")
	kit.Next(t, w, watch.Added, "e")
	own := func() {
		t.Helper()
		kit.UntilListed(all, path, "e", "e")
		for _, version := range []string{kit.APIsV1Alpha1, kit.APIsV1Alpha2} {
			inOne.RequireCode(http.StatusNotFound, http.MethodGet, version+"apibindings/gadgets", "")
		}
	}
	const claim = `{"group":"apis.kcp.io","resource":"apibindings","verbs":["get","list","watch"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	own() // the claim is not accepted yet

	// All bindings of the consumer, including those to exports of root, in both versions.
	one.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	everything := kit.ItemNames(one.Get(path))
	require.Greater(t, len(everything), 2)
	for _, version := range []string{kit.APIsV1Alpha1, kit.APIsV1Alpha2} {
		kit.UntilListed(inOne, version+"apibindings", everything...)
		require.Equal(t, other.ClusterName, kit.Field(inOne.Get(version+"apibindings/gadgets"), "status", "apiExportClusterName"))
	}
	require.Equal(t, one.ClusterName, kit.Next(t, w, watch.Added, "gadgets").GetAnnotations()["kcp.io/cluster"])
	kit.UntilListed(inTwo, path, "e")
	inOne.RequireCode(http.StatusForbidden, http.MethodDelete, path+"/gadgets", "")

	// Only selected bindings, which may exclude the binding to the export itself.
	one.AcceptClaims(`[` + claim + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
	kit.Next(t, w, watch.Deleted, "gadgets")
	kit.UntilListed(inOne, path)
	one.Patch(path+"/gadgets", `{"metadata":{"labels":{"for":"provider"}}}`)
	kit.Next(t, w, watch.Added, "gadgets")
	kit.UntilListed(inOne, path, "gadgets")

	one.AcceptClaims(fmt.Sprintf(`[%s,"selector":{"matchAll":true},"state":"Rejected"}]`, claim))
	kit.Next(t, w, watch.Deleted, "gadgets")
	own()
}

// TestSystemClaims checks claims on exports of root, by the identity that root publishes, on shards with and without root.
func TestSystemClaims(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	tenancy := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}.ForTest(t).IdentityOf("tenancy.kcp.io")
	for shard, where := range []string{"on the shard of root", "on another shard"} {
		t.Run(where, func(t *testing.T) { testSystemClaims(t, e, tenancy, shard) })
	}
}

func testSystemClaims(t *testing.T, e *kit.Env, tenancy string, shard int) {
	const workspaces = kit.TenancyPath + "workspaces"
	provider := kit.NewWorkspaceClient(e, fmt.Sprint("system-claims-provider-", shard)).ForTest(t)
	k := kit.NewWorkspaceClientOn(e, fmt.Sprint("system-claims-", shard), shard).ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	claim := `{"group":"tenancy.kcp.io","resource":"workspaces","identityHash":"` + tenancy + `","verbs":["*"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	k.BindPathReady("e", provider.ClusterName, "e")
	k.Create(workspaces, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"seen","labels":{"for":"provider"}}}`)
	k.Create(workspaces, "%s", kit.WorkspaceBody("hidden"))
	for _, name := range []string{"seen", "hidden"} {
		kit.UntilPhase(k, workspaces+"/"+name, "Ready")
	}
	all, in := kit.OnShard(provider, shard).ThroughExport("e", "*"), kit.OnShard(provider, shard).ThroughExport("e", k.ClusterName)
	all.UntilCode(http.StatusOK, http.MethodGet, workspaces, "")
	kit.UntilListed(all, workspaces)
	w := kit.WatchThrough(all, schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}, "")

	// Selected objects are visible, with the label of the claim.
	k.AcceptClaims(`[` + claim + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
	require.Len(t, claimLabelsIn(kit.Next(t, w, watch.Added, "seen").GetLabels()), 1)
	kit.UntilListed(all, workspaces, "seen")
	kit.UntilListed(in, workspaces, "seen")
	require.Equal(t, k.Get(workspaces+"/seen").GetUID(), in.Get(workspaces+"/seen").GetUID())
	k.Eventually("the consumer reads the label", func() bool { return len(claimedObject(k, workspaces+"/seen")) == 1 })
	require.Empty(t, claimedObject(k, workspaces+"/hidden"))
	in.Do(http.StatusNotFound, http.MethodGet, workspaces+"/hidden", "")
	require.Contains(t, fmt.Sprint(in.Get(strings.TrimSuffix(kit.TenancyPath, "/")).Object), "workspaces/status")
	require.NotContains(t, fmt.Sprint(in.Get(strings.TrimSuffix(kit.TenancyPath, "/")).Object), "workspacetypes")

	// Objects that are created through the claim match the selector.
	in.Create(workspaces, "%s", kit.WorkspaceBody("made"))
	kit.Next(t, w, watch.Added, "made")
	require.Equal(t, "provider", k.Get(workspaces + "/made").GetLabels()["for"])
	kit.UntilPhase(in, workspaces+"/made", "Ready")
	in.Do(http.StatusForbidden, http.MethodPatch, workspaces+"/made", `{"metadata":{"labels":{"for":"others"}}}`)
	in.Delete(workspaces + "/made")
	kit.Next(t, w, watch.Deleted, "made")

	// The maximal permission policy of root applies.
	provider.BindRole("all", "cluster-admin", "user-1")
	user := in.As("user-1-token")
	user.UntilCode(http.StatusOK, http.MethodGet, workspaces+"/seen", "")
	denied := user.Do(http.StatusForbidden, http.MethodPut, workspaces+"/seen/status", kit.WorkspaceBody("seen"))
	require.Contains(t, kit.Field(denied, "message"), "maximal permission policy")

	// A narrower and a wider selector, in watches and lists.
	k.AcceptClaims(`[` + claim + `,"selector":{"matchLabels":{"for":"none"}},"state":"Accepted"}]`)
	kit.Next(t, w, watch.Deleted, "seen")
	kit.UntilListed(in, workspaces)
	k.Eventually("the label is removed", func() bool { return len(claimedObject(k, workspaces+"/seen")) == 0 })
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	kit.Next(t, w, watch.Added, "hidden")
	kit.UntilListed(in, workspaces, "hidden", "seen")
	kit.UntilListed(all, workspaces, "hidden", "seen")

	// A claim with another identity permits nothing.
	wrong := strings.Replace(claim, tenancy, strings.Repeat("0", 64), 1)
	provider.ClaimInExport(`[` + wrong + `}]`)
	k.AcceptClaims(`[` + wrong + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	for _, vw := range []kit.WorkspaceClient{all, in} {
		vw.UntilDeleted(workspaces)
	}
	k.Eventually("the label of the claim is removed", func() bool { return len(claimedObject(k, workspaces+"/seen")) == 0 })
}
