package apis

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// testClaimFinalizers: a provider adds finalizers to the LogicalClusters of consumers that accept
// its claim on these, and nothing else; their deletion waits for it before it deletes the binding.
func testClaimFinalizers(t *testing.T, e *kit.Env) {
	const (
		lc    = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
		claim = `[{"group":"core.kcp.io","resource":"logicalclusters","verbs":["get","list","watch","update","patch"]%s}]`
		merge = "merge-patch+json"
	)
	provider, _, consumers := consumersOf(t, e, "finalizers", 1)
	k := consumers[0]
	for _, in := range []kit.WorkspaceClient{provider, k} {
		in.Create(kit.RBACPath+"clusterrolebindings", kit.AllRights)
	}
	provider.ClaimInExport(fmt.Sprintf(claim, ""))
	consumer, in := k.As("user-1-token"), provider.As("user-1-token").ThroughExport("e", k.ClusterName)
	set := func(finalizers ...string) string {
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
		require.NoError(t, err)
		return string(text)
	}
	had := k.Get(lc).GetFinalizers()
	held := set(append(slices.Clone(had), "example.org/wait")...)
	in.Eventually("the provider may use the view, which does not let it", func() bool {
		code, says := writeAs(in, http.MethodPatch, lc, merge, held)
		require.Equal(t, http.StatusForbidden, code, says)
		_, says = in.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
		var list struct{ Kind string }
		require.NoError(t, json.Unmarshal([]byte(says), &list))
		return list.Kind == "WidgetList"
	})
	k.AcceptClaims(fmt.Sprintf(claim, `,"selector":{"matchAll":true},"state":"Accepted"`))
	in.Eventually("the view has heard of it", func() bool {
		code, _ := in.TryDo(http.MethodGet, lc, "")
		return code == http.StatusOK
	})
	code, says := writeAs(in, http.MethodPatch, lc, merge, held)
	require.Equal(t, http.StatusOK, code, says)
	require.Contains(t, k.Get(lc).GetFinalizers(), "example.org/wait")
	for who, forbidden := range map[string]struct {
		as   kit.WorkspaceClient
		body string
	}{
		"who administers it": {consumer, set(append(slices.Clone(had), "example.org/wait", "example.org/mine")...)},
		"spec":               {in, `{"spec":{"directlyDeletable":true}}`},
		"of the system":      {in, set("example.org/wait")},
	} {
		code, says := writeAs(forbidden.as, http.MethodPatch, lc, merge, forbidden.body)
		require.Equal(t, http.StatusForbidden, code, "%s: %s", who, says)
	}

	root := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}.ForTest(t)
	const workspace = kit.TenancyPath + "workspaces/finalizers-0"
	root.Do(http.StatusOK, http.MethodDelete, workspace, "")
	k.Eventually("it tells what it waits for", func() bool {
		return kit.Condition(k.Get(lc), "WorkspaceContentDeleted") == "False FinalizersRemaining"
	})
	require.NotNil(t, in.Get(lc).GetDeletionTimestamp(), "the provider sees it")
	require.Nil(t, k.Get(kit.APIsV1Alpha2+"apibindings/e").GetDeletionTimestamp())
	code, says = writeAs(in, http.MethodPatch, lc, merge, set(had...))
	require.Equal(t, http.StatusOK, code, says)
	root.Eventually("it is gone", func() bool {
		code, _ := root.TryDo(http.MethodGet, workspace, "")
		return code == http.StatusNotFound
	})
}
