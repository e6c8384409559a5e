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
	itself     = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
	deactivate = `{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`
)

// TestInactive checks that open watches in a logical cluster end if it becomes inactive, of all users and on all paths, and no others.
func TestInactive(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, _, consumers := consumersOf(t, e, "switched", 2)
	one, other := consumers[0], consumers[1]
	configs := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	own := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}
	logicalClusters := schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}
	proxied := one
	proxied.Config = e.Proxy()
	wildcard := one.In("*")

	ends := map[string]watch.Interface{
		"built-in":                    watchThrough(one, configs, ""),
		"custom":                      watchThrough(one, own, "default"),
		"through the front-proxy":     watchThrough(proxied, configs, "default"),
		"through a virtual workspace": watchThrough(provider.ThroughExport("e", one.ClusterName), own, ""),
		"of bindings, through a virtual workspace": watchThrough(provider.ThroughExport("e", one.ClusterName), schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}, ""),
	}
	all := watchThrough(provider.ThroughExport("e", "*"), own, "")
	stays := map[string]watch.Interface{
		"another":                              watchThrough(other, own, ""),
		"another, through a virtual workspace": watchThrough(provider.ThroughExport("e", other.ClusterName), own, ""),
		"all, through a virtual workspace":     all,
	}
	ofShard, state := watchThrough(wildcard, configs, ""), watchThrough(one, logicalClusters, "")

	one.Patch(itself, deactivate)
	for what, w := range ends {
		untilEnded(t, what, w)
	}
	for _, k := range []kit.WorkspaceClient{one, proxied, provider.ThroughExport("e", one.ClusterName)} {
		require.Contains(t, k.RequireCode(http.StatusForbidden, http.MethodGet, "/apis/example.org/v1/widgets?watch=true", ""), "inactive")
	}
	other.Create(kit.WidgetsPath, "%s", kit.Widget("after", "size", 1))
	other.Create(kit.ConfigMapsPath, `{"metadata":{"name":"after-switched-off"}}`)
	for what, w := range stays {
		t.Log(what)
		next(t, w, watch.Added, "after")
	}
	next(t, ofShard, watch.Added, "after-switched-off")
	next(t, state, watch.Modified, "cluster")

	// Watches of a provider must end if it becomes inactive.
	provider.Patch(itself, deactivate)
	untilEnded(t, "through the virtual workspace of the provider", all)
	other.Create(kit.WidgetsPath, "%s", kit.Widget("later", "size", 1))
	next(t, stays["another"], watch.Added, "later")
}

// untilEnded waits for the end of a watch, and returns its events.
func untilEnded(t *testing.T, what string, w watch.Interface) (events []watch.Event) {
	t.Helper()
	timeout := time.After(kit.Timeout)
	for {
		select {
		case event, open := <-w.ResultChan():
			if !open {
				return events
			}
			require.NotEqual(t, watch.Error, event.Type, "%s: %v", what, event.Object)
			events = append(events, event)
		case <-timeout:
			require.Fail(t, "the watch did not end within "+kit.Timeout.String(), what)
		}
	}
}
