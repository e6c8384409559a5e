package apis

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestListsOfBoundAPIs checks that lists of bound APIs from watch caches are counted in the metric that kcp uses.
func TestListsOfBoundAPIs(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, k := kit.NewWorkspaceClient(e, "lists-provider").ForTest(t), kit.NewWorkspaceClient(e, "lists-consumer").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "doodads", "size"))
	k.BindReady("e", provider, "e")
	counted := func() (n float64) {
		text := kit.RequireCode(t, k.Config, kit.Request{Path: "/metrics"}, http.StatusOK)
		_, after, ok := strings.Cut(string(text), `apiserver_cache_list_total{group="unexpected",index="",resource="unexpected"} `)
		if ok {
			line, _, _ := strings.Cut(after, "\n")
			var err error
			n, err = strconv.ParseFloat(line, 64)
			require.NoError(t, err)
		}
		return n
	}
	const path, lists = "/apis/example.org/v1/doodads", 5
	k.Get(path)
	before := counted()
	all := k.In("*")
	for range lists {
		k.Get(path + "?resourceVersion=0")
		all.Get(path + ":" + identity + "?resourceVersion=0")
	}
	require.GreaterOrEqual(t, counted(), before+2*lists)
}
