package apis

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testClaimOfBindings checks that a provider without an accepted claim on apibindings reads the bindings to its export, and with one
// those that the claim selects.
func testClaimOfBindings(t *testing.T, e *kit.Env, shard int) {
	provider, _, consumers := consumersOn(t, e, shard, "bindings", 2)
	one, two := consumers[0], consumers[1]
	other := kit.NewWorkspaceClient(e, fmt.Sprint("bindings-other-", shard)).ForTest(t)
	other.CreateExport("gadgets", other.CreateSchema("v1", "gadgets", "size"))
	for _, k := range consumers {
		k.BindReady("gadgets", other, "gadgets")
	}
	all, inOne, inTwo := provider.ThroughExport("e", "*"), provider.ThroughExport("e", one.ClusterName), provider.ThroughExport("e", two.ClusterName)
	const path = kit.APIsV1Alpha2 + "apibindings"
	w := watchThrough(all, schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}, "")
	next(t, w, watch.Added, "e")
	next(t, w, watch.Added, "e")
	own := func() {
		t.Helper()
		untilListed(all, path, "e", "e")
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
		untilListed(inOne, version+"apibindings", everything...)
		require.Equal(t, other.ClusterName, kit.Field(inOne.Get(version+"apibindings/gadgets"), "status", "apiExportClusterName"))
	}
	require.Equal(t, one.ClusterName, next(t, w, watch.Added, "gadgets").GetAnnotations()["kcp.io/cluster"])
	untilListed(inTwo, path, "e")
	inOne.RequireCode(http.StatusForbidden, http.MethodDelete, path+"/gadgets", "")

	// Only selected bindings, which may exclude the binding to the export itself.
	one.AcceptClaims(`[` + claim + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
	next(t, w, watch.Deleted, "gadgets")
	untilListed(inOne, path)
	one.Patch(path+"/gadgets", `{"metadata":{"labels":{"for":"provider"}}}`)
	next(t, w, watch.Added, "gadgets")
	untilListed(inOne, path, "gadgets")

	one.AcceptClaims(fmt.Sprintf(`[%s,"selector":{"matchAll":true},"state":"Rejected"}]`, claim))
	next(t, w, watch.Deleted, "gadgets")
	own()
}
