package apis

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestBindingCosts: many bindings of one export have no goroutine, watch cache, serving
// info or document more than few. `make bench` measures the memory.
func TestBindingCosts(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: counts goroutines of a process")
	}
	const few, many = 10, 300
	e := kit.Shared(t)
	provider := kit.NewWorkspaceClient(e, "costs-provider")
	provider.CreateExport("widgets", provider.CreateSchema("v1", "widgets", "size"))
	consumers := make([]kit.WorkspaceClient, many)
	for i := range consumers {
		consumers[i] = kit.WorkspaceClient{Env: e, Config: provider.Config, ClusterName: fmt.Sprintf("costs%d", i)}
	}
	consume(t, consumers, func(k kit.WorkspaceClient) {
		k.Do(http.StatusCreated, http.MethodPost, "/apis/core.kcp.io/v1alpha1/logicalclusters",
			`{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"},"spec":{}}`)
	})
	bind := func(k kit.WorkspaceClient) {
		k.Bind("widgets", provider, "widgets")
		k.UntilBinding("widgets", "Ready", "True <nil>")
		require.Empty(k.T, kit.Field(k.Get("/apis/example.org/v1/widgets"), "items"))
		require.Contains(k.T, fmt.Sprint(k.Get("/apis/example.org/v1").Object), "widgets/status")
		require.Contains(k.T, fmt.Sprint(k.Get("/openapi/v3/apis/example.org/v1").Object), "size")
	}
	// The documents of who has bound nothing are there, too.
	code, says := consumers[0].TryDo(http.MethodGet, "/apis/example.org/v1", "")
	require.Equal(t, http.StatusNotFound, code, says)
	consume(t, consumers[:few], bind)
	before := costs(t, provider)
	consume(t, consumers[few:], bind)
	// What is needed while they are made may end later; other tests' rest may be used again.
	const others = 5
	e.Eventually("goroutines that the bindings needed have ended", func() bool {
		return costs(t, provider)["go_goroutines"] < before["go_goroutines"]+(many-few)/4
	})
	for name, n := range costs(t, provider) {
		require.Positive(t, n, name)
		if name != "go_goroutines" {
			require.Less(t, n, before[name]+others, name)
		}
	}
}

// consume calls f for each, some at a time.
func consume(t *testing.T, all []kit.WorkspaceClient, f func(kit.WorkspaceClient)) {
	t.Helper()
	const atATime = 8
	t.Run("consumers", func(t *testing.T) {
		for first := range atATime {
			t.Run(strconv.Itoa(first), func(t *testing.T) {
				t.Parallel()
				for i := first; i < len(all); i += atATime {
					f(all[i].ForTest(t))
				}
			})
		}
	})
}

// costs reads from a shard's metrics what must not grow with bindings.
func costs(t *testing.T, k kit.WorkspaceClient) map[string]int {
	t.Helper()
	code, text := kit.Do(t, k.Config, kit.Request{Path: "/metrics"})
	require.Equal(t, http.StatusOK, code, "%s", text)
	counts := map[string]int{}
	for line := range strings.Lines(string(text)) {
		for _, prefix := range []string{
			"go_goroutines", `apiserver_watch_cache_initializations_total{group="unexpected"`,
			"shardplane_custom_resources_serving_infos_total", "shardplane_custom_resources_document_sets_total",
		} {
			if strings.HasPrefix(line, prefix) {
				value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
				require.NoError(t, err, line)
				counts[prefix] += int(value)
			}
		}
	}
	require.Len(t, counts, 4)
	return counts
}

// TestListsOfBoundAPIs: lists that watch caches answer are counted by resource, where kcp's users look.
func TestListsOfBoundAPIs(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, k := kit.NewWorkspaceClient(e, "lists-provider").ForTest(t), kit.NewWorkspaceClient(e, "lists-consumer").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "doodads", "size"))
	k.Bind("e", provider, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	counted := func() (n float64) {
		code, text := kit.Do(t, k.Config, kit.Request{Path: "/metrics"})
		require.Equal(t, http.StatusOK, code)
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
	all := k
	all.ClusterName = "*"
	for range lists {
		k.Get(path + "?resourceVersion=0")
		all.Get(path + ":" + identity + "?resourceVersion=0")
	}
	require.GreaterOrEqual(t, counted(), before+2*lists)
}
