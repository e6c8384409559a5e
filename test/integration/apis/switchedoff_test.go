package apis

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

const (
	itself    = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
	switchOff = `{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`
)

// TestSwitchedOff: open watches end in a logical cluster that is switched off, whoever has
// opened them, wherever and through whatever; those of others go on.
func TestSwitchedOff(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, _, consumers := consumersOf(t, e, "switched", 2)
	one, other := consumers[0], consumers[1]
	configs := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	own := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}
	logicalClusters := schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}
	proxied := one
	proxied.Config = e.Proxy()
	wildcard := one
	wildcard.ClusterName = "*"

	ends := map[string]watch.Interface{
		"built-in":                 watchThrough(one, configs, ""),
		"custom":                   watchThrough(one, own, "default"),
		"through the front-proxy":  watchThrough(proxied, configs, "default"),
		"through a view":           watchThrough(provider.ThroughExport("e", one.ClusterName), own, ""),
		"of bindings, by the view": watchThrough(provider.ThroughExport("e", one.ClusterName), schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}, ""),
	}
	all := watchThrough(provider.ThroughExport("e", "*"), own, "")
	stays := map[string]watch.Interface{
		"another":           watchThrough(other, own, ""),
		"another by a view": watchThrough(provider.ThroughExport("e", other.ClusterName), own, ""),
		"all by a view":     all,
	}
	ofShard, state := watchThrough(wildcard, configs, ""), watchThrough(one, logicalClusters, "")

	one.Do(http.StatusOK, http.MethodPatch, itself, switchOff)
	for what, w := range ends {
		ended(t, what, w)
	}
	for _, k := range []kit.WorkspaceClient{one, proxied, provider.ThroughExport("e", one.ClusterName)} {
		code, says := k.TryDo(http.MethodGet, "/apis/example.org/v1/widgets?watch=true", "")
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "inactive")
	}
	other.Create(kit.WidgetsPath, "%s", kit.Widget("after", "size", 1))
	other.Create(kit.ConfigMapsPath, `{"metadata":{"name":"after-switched-off"}}`)
	for what, w := range stays {
		t.Log(what)
		next(t, w, watch.Added, "after")
	}
	next(t, ofShard, watch.Added, "after-switched-off")
	next(t, state, watch.Modified, "cluster")

	// What a provider that is switched off has granted ends, too.
	provider.Do(http.StatusOK, http.MethodPatch, itself, switchOff)
	ended(t, "all by the view of a provider", all)
	other.Create(kit.WidgetsPath, "%s", kit.Widget("later", "size", 1))
	next(t, stays["another"], watch.Added, "later")
}

// ended waits for the end of a watch, past what it has to say before.
func ended(t *testing.T, what string, w watch.Interface) {
	t.Helper()
	timeout := time.After(kit.Timeout)
	for {
		select {
		case event, open := <-w.ResultChan():
			if !open {
				return
			}
			require.NotEqual(t, watch.Error, event.Type, "%s: %v", what, event.Object)
		case <-timeout:
			require.Fail(t, "the watch goes on", what)
		}
	}
}
