package apis

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testClaimOfBindings: without a claim on apibindings a provider sees those to its export, and with
// one, where and as long as it is accepted, those that it selects.
func testClaimOfBindings(t *testing.T, e *kit.Env, shard int) {
	provider, _, consumers := consumersOn(t, e, shard, "bindings", 2)
	one, two := consumers[0], consumers[1]
	other := kit.NewWorkspaceClient(e, fmt.Sprint("bindings-other-", shard)).ForTest(t)
	other.CreateExport("gadgets", other.CreateSchema("v1", "gadgets", "size"))
	for _, k := range consumers {
		k.Bind("gadgets", other, "gadgets")
		k.UntilBinding("gadgets", "Ready", "True <nil>")
	}
	all, inOne, inTwo := provider.ThroughExport("e", "*"), provider.ThroughExport("e", one.ClusterName), provider.ThroughExport("e", two.ClusterName)
	const path = kit.APIsV1Alpha2 + "apibindings"
	w := watchThrough(all, schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}, "")
	next(t, w, watch.Added, "e")
	next(t, w, watch.Added, "e")
	own := func() {
		t.Helper()
		untilSees(all, path, "e", "e")
		for _, version := range []string{kit.APIsV1Alpha1, kit.APIsV1Alpha2} {
			code, says := inOne.TryDo(http.MethodGet, version+"apibindings/gadgets", "")
			require.Equal(t, http.StatusNotFound, code, says)
		}
	}
	const claim = `{"group":"apis.kcp.io","resource":"apibindings","verbs":["get","list","watch"]`
	provider.ClaimInExport(`[` + claim + `}]`)
	own() // asking is not enough

	// All that the consumer has, those to what root exports among them, in both versions.
	one.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	bound := &unstructured.UnstructuredList{}
	text, err := one.Get(path).MarshalJSON()
	require.NoError(t, err)
	require.NoError(t, bound.UnmarshalJSON(text))
	everything := kit.Names(bound.Items)
	require.Greater(t, len(everything), 2)
	for _, version := range []string{kit.APIsV1Alpha1, kit.APIsV1Alpha2} {
		untilSees(inOne, version+"apibindings", everything...)
		require.Equal(t, other.ClusterName, kit.Field(inOne.Get(version+"apibindings/gadgets"), "status", "apiExportClusterName"))
	}
	require.Equal(t, one.ClusterName, next(t, w, watch.Added, "gadgets").GetAnnotations()["kcp.io/cluster"])
	untilSees(inTwo, path, "e")
	code, says := inOne.TryDo(http.MethodDelete, path+"/gadgets", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// What it selects, and nothing else, its own included.
	one.AcceptClaims(`[` + claim + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
	next(t, w, watch.Deleted, "gadgets")
	untilSees(inOne, path)
	one.Do(http.StatusOK, http.MethodPatch, path+"/gadgets", `{"metadata":{"labels":{"for":"provider"}}}`)
	next(t, w, watch.Added, "gadgets")
	untilSees(inOne, path, "gadgets")

	one.AcceptClaims(fmt.Sprintf(`[%s,"selector":{"matchAll":true},"state":"Rejected"}]`, claim))
	next(t, w, watch.Deleted, "gadgets")
	own()
}
