package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// testClaimFinalizers: a provider adds finalizers to the LogicalClusters of consumers that accept
// its claim on these, and nothing else; their deletion waits for it before it deletes the binding.
func testClaimFinalizers(t *testing.T, e *env) {
	const (
		lc    = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
		claim = `[{"group":"core.kcp.io","resource":"logicalclusters","verbs":["get","list","watch","update","patch"]%s}]`
		merge = "merge-patch+json"
	)
	provider, _, consumers := consumersOf(t, e, "finalizers", 1)
	k := consumers[0]
	for _, in := range []apiKinds{provider, k} {
		in.create(rbacPath+"clusterrolebindings", allRights)
	}
	provider.claim(fmt.Sprintf(claim, ""))
	consumer, in := k.as("user-1-token"), provider.as("user-1-token").through("e", k.cluster)
	set := func(finalizers ...string) string {
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
		require.NoError(t, err)
		return string(text)
	}
	had := k.get(lc).GetFinalizers()
	held := set(append(slices.Clone(had), "example.org/wait")...)
	in.eventually("the provider may use the view, which does not let it", func() bool {
		code, says := in.write(http.MethodPatch, lc, merge, held)
		require.Equal(t, http.StatusForbidden, code, says)
		_, says = in.status(http.MethodGet, "/apis/example.org/v1/widgets", "")
		var list struct{ Kind string }
		require.NoError(t, json.Unmarshal([]byte(says), &list))
		return list.Kind == "WidgetList"
	})
	k.accept(fmt.Sprintf(claim, `,"selector":{"matchAll":true},"state":"Accepted"`))
	in.eventually("the view has heard of it", func() bool {
		code, _ := in.status(http.MethodGet, lc, "")
		return code == http.StatusOK
	})
	code, says := in.write(http.MethodPatch, lc, merge, held)
	require.Equal(t, http.StatusOK, code, says)
	require.Contains(t, k.get(lc).GetFinalizers(), "example.org/wait")
	for who, forbidden := range map[string]struct {
		as   apiKinds
		body string
	}{
		"who administers it": {consumer, set(append(slices.Clone(had), "example.org/wait", "example.org/mine")...)},
		"spec":               {in, `{"spec":{"directlyDeletable":true}}`},
		"of the system":      {in, set("example.org/wait")},
	} {
		code, says := forbidden.as.write(http.MethodPatch, lc, merge, forbidden.body)
		require.Equal(t, http.StatusForbidden, code, "%s: %s", who, says)
	}

	root := apiKinds{env: e, config: e.Shard(0), cluster: "root"}.in(t)
	const workspace = tenancyPath + "workspaces/finalizers-0"
	root.ask(http.StatusOK, http.MethodDelete, workspace, "")
	k.eventually("it tells what it waits for", func() bool {
		return condition(k.get(lc), "WorkspaceContentDeleted") == "False FinalizersRemaining"
	})
	require.NotNil(t, in.get(lc).GetDeletionTimestamp(), "the provider sees it")
	require.Nil(t, k.get(apisV2+"apibindings/e").GetDeletionTimestamp())
	code, says = in.write(http.MethodPatch, lc, merge, set(had...))
	require.Equal(t, http.StatusOK, code, says)
	root.eventually("it is gone", func() bool {
		code, _ := root.status(http.MethodGet, workspace, "")
		return code == http.StatusNotFound
	})
}
