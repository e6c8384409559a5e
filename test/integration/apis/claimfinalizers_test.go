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

// testClaimFinalizers checks that a provider can set finalizers of the LogicalClusters of consumers that accept its claim, and nothing
// else. The deletion waits for the finalizer before it deletes the binding.
func testClaimFinalizers(t *testing.T, e *kit.Env) {
	const (
		lc    = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
		claim = `[{"group":"core.kcp.io","resource":"logicalclusters","verbs":["get","list","watch","update","patch"]%s}]`
		merge = "merge-patch+json"
	)
	provider, _, consumers := consumersOf(t, e, "finalizers", 1)
	k := consumers[0]
	for _, in := range []kit.WorkspaceClient{provider, k} {
		in.BindRole("all", "cluster-admin", "user-1")
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
	in.Eventually("the provider may use the virtual workspace, but not set finalizers", func() bool {
		code, message := writeAs(in, http.MethodPatch, lc, merge, held)
		require.Equal(t, http.StatusForbidden, code, message)
		_, message = in.TryDo(http.MethodGet, "/apis/example.org/v1/widgets", "")
		var list struct{ Kind string }
		require.NoError(t, json.Unmarshal([]byte(message), &list))
		return list.Kind == "WidgetList"
	})
	k.AcceptClaims(fmt.Sprintf(claim, `,"selector":{"matchAll":true},"state":"Accepted"`))
	in.UntilCode(http.StatusOK, http.MethodGet, lc, "")
	in.Do(http.StatusOK, http.MethodPatch, lc, held)
	require.Contains(t, k.Get(lc).GetFinalizers(), "example.org/wait")
	for _, forbidden := range []struct {
		as   kit.WorkspaceClient
		body string
	}{
		{consumer, set(append(slices.Clone(had), "example.org/wait", "example.org/mine")...)},
		{in, `{"spec":{"directlyDeletable":true}}`},
		{in, set("example.org/wait")},
	} {
		forbidden.as.Do(http.StatusForbidden, http.MethodPatch, lc, forbidden.body)
	}

	root := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}.ForTest(t)
	const workspace = kit.TenancyPath + "workspaces/finalizers-0"
	root.Delete(workspace)
	k.Eventually("the deletion waits for the finalizer", func() bool {
		return kit.Condition(k.Get(lc), "WorkspaceContentDeleted") == "False FinalizersRemaining"
	})
	require.NotNil(t, in.Get(lc).GetDeletionTimestamp(), "the provider must observe the deletion")
	require.Nil(t, k.Get(kit.APIsV1Alpha2+"apibindings/e").GetDeletionTimestamp())
	in.Do(http.StatusOK, http.MethodPatch, lc, set(had...))
	root.UntilDeleted(workspace)
}
