package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// testClaimOfBindings: without a claim on apibindings a provider sees those to its export, and with
// one, where and as long as it is accepted, those that it selects.
func testClaimOfBindings(t *testing.T, e *env, shard int) {
	provider, _, consumers := consumersOn(t, e, shard, "bindings", 2)
	one, two := consumers[0], consumers[1]
	other := newAPIKinds(e, fmt.Sprint("bindings-other-", shard)).in(t)
	other.export("gadgets", other.schema("v1", "gadgets", "size"))
	for _, k := range consumers {
		k.bind("gadgets", other, "gadgets")
		k.until("gadgets", "Ready", "True <nil>")
	}
	all, inOne, inTwo := provider.through("e", "*"), provider.through("e", one.cluster), provider.through("e", two.cluster)
	const path = apisV2 + "apibindings"
	w := all.follow(schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}, "")
	next(t, w, watch.Added, "e")
	next(t, w, watch.Added, "e")
	own := func() {
		t.Helper()
		all.untilSees(path, "e", "e")
		for _, version := range []string{apisV1, apisV2} {
			code, says := inOne.status(http.MethodGet, version+"apibindings/gadgets", "")
			require.Equal(t, http.StatusNotFound, code, says)
		}
	}
	const claim = `{"group":"apis.kcp.io","resource":"apibindings","verbs":["get","list","watch"]`
	provider.claim(`[` + claim + `}]`)
	own() // asking is not enough

	// All that the consumer has, those to what root exports among them, in both versions.
	one.accept(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	bound := &unstructured.UnstructuredList{}
	text, err := one.get(path).MarshalJSON()
	require.NoError(t, err)
	require.NoError(t, bound.UnmarshalJSON(text))
	everything := names(bound.Items)
	require.Greater(t, len(everything), 2)
	for _, version := range []string{apisV1, apisV2} {
		inOne.untilSees(version+"apibindings", everything...)
		require.Equal(t, other.cluster, field(inOne.get(version+"apibindings/gadgets"), "status", "apiExportClusterName"))
	}
	require.Equal(t, one.cluster, next(t, w, watch.Added, "gadgets").GetAnnotations()["kcp.io/cluster"])
	inTwo.untilSees(path, "e")
	code, says := inOne.status(http.MethodDelete, path+"/gadgets", "")
	require.Equal(t, http.StatusForbidden, code, says)

	// What it selects, and nothing else, its own included.
	one.accept(`[` + claim + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
	next(t, w, watch.Deleted, "gadgets")
	inOne.untilSees(path)
	one.ask(http.StatusOK, http.MethodPatch, path+"/gadgets", `{"metadata":{"labels":{"for":"provider"}}}`)
	next(t, w, watch.Added, "gadgets")
	inOne.untilSees(path, "gadgets")

	one.accept(fmt.Sprintf(`[%s,"selector":{"matchAll":true},"state":"Rejected"}]`, claim))
	next(t, w, watch.Deleted, "gadgets")
	own()
}
