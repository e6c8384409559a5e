package plugin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestUnreachableShards verifies that an unreachable shard receives one request, and that other shards are shown.
func TestUnreachableShards(t *testing.T) {
	t.Parallel()
	const item = `{"metadata":{"name":"NAME","annotations":{"core.kcp.io/shard":"SHARD"}},"spec":{"cluster":"c-NAME"},"status":{"phase":"Ready"}}`
	list := func(items ...string) string {
		return `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceList","metadata":{},"items":[` + strings.Join(items, ",") + `]}`
	}
	on := func(name, shard string) string {
		return strings.NewReplacer("NAME", name, "SHARD", shard).Replace(item)
	}
	var mu sync.Mutex
	unreachable := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch cluster, _ := pathIn(r.URL.Path); cluster.String() {
		case "root":
			_, _ = w.Write([]byte(list(on("a", "one"), on("b", "two"), on("c", "two"))))
		case "c-a":
			_, _ = w.Write([]byte(list(on("d", "one"))))
		case "c-d":
			_, _ = w.Write([]byte(list()))
		default:
			mu.Lock()
			unreachable++
			mu.Unlock()
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	t.Cleanup(server.Close)
	clients, err := client.NewFactory(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	w := newWalker(&session{clients: clients}, false)
	w.slots = make(chan struct{}, 1) // one after the other
	root := w.walk(t.Context(), logicalcluster.NewPath("root"), 0)
	require.Equal(t, 1, unreachable)
	require.NoError(t, root.err)
	require.Equal(t, "d", root.children[0].children[0].name)
	require.Error(t, root.children[1].err)
	require.Equal(t, root.children[1].err, root.children[2].err)
	of, unseen := loads(root)
	require.Equal(t, 2, unseen)
	require.Equal(t, 2, of["two"].failed)
	require.Equal(t, map[string]bool{"a": true}, of["one"].tenants)
	require.Equal(t, 2, of["one"].workspaces)

	root = w.walk(t.Context(), logicalcluster.NewPath("root"), 1)
	require.Len(t, root.children, 3)
	require.Empty(t, root.children[0].children)
}
