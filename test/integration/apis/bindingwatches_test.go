package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// testBoundWatches checks that a change of a schema ends the watches of its resource, including those by identity, and no others.
func testBoundWatches(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "watch-provider").ForTest(t), kit.NewWorkspaceClient(e, "watch-consumer").ForTest(t)
	identity := provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"), provider.CreateSchema("v1", "gadgets", "size"))
	k.BindReady("e", provider, "e")
	follow := func(scope client.Scope, resource string) watch.Interface {
		clients, err := scope.Dynamic()
		require.NoError(t, err)
		w, err := clients.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: resource}).Watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		return w
	}
	here, everywhere := e.ShardClients["root"].Cluster(kit.Path(k.ClusterName)), e.ShardClients["root"].Wildcard()
	widgetsHere, gadgetsHere := follow(here, "widgets"), follow(here, "gadgets")
	widgetsAll, gadgetsAll := follow(everywhere, "widgets:"+identity), follow(everywhere, "gadgets:"+identity)

	const resources = `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v2.widgets.example.org","storage":{"crd":{}}},{"group":"example.org","name":"gadgets","schema":"%s.gadgets.example.org","storage":{"crd":{}}}]}}`
	provider.CreateSchema("v2", "widgets", "weight")
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", fmt.Sprintf(resources, "v1"))
	require.Empty(t, untilEnded(t, "with the former schema", widgetsHere))
	require.Empty(t, untilEnded(t, "with the former schema, by identity", widgetsAll))
	requireOpen := func(name string) {
		k.Create(strings.Replace(kit.WidgetsPath, "widgets", "gadgets", 1), `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":%q}}`, name)
		kit.Next(t, gadgetsHere, watch.Added, name)
		kit.Next(t, gadgetsAll, watch.Added, name)
	}
	requireOpen("unchanged")

	// If a schema has the same content, nothing must change.
	provider.CreateSchema("v2", "gadgets", "size")
	provider.Patch(kit.APIsV1Alpha2+"apiexports/e", fmt.Sprintf(resources, "v2"))
	k.Eventually("the other schema is bound", func() bool {
		return strings.Contains(fmt.Sprint(kit.Field(k.Get(kit.APIsV1Alpha2+"apibindings/e"), "status", "boundResources")), "v2.gadgets.example.org")
	})
	requireOpen("same")
}

const deactivate = `{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`

// TestInactive checks that open watches in a logical cluster end if it becomes inactive, of all users and on all paths, and no others.
func TestInactive(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider, _, consumers := kit.ConsumersOf(t, e, "switched", 2)
	one, other := consumers[0], consumers[1]
	configs := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	own := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}
	logicalClusters := schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}
	proxied := one
	proxied.Config = e.Proxy()
	wildcard := one.In("*")

	ends := map[string]watch.Interface{
		"built-in":                    kit.WatchThrough(one, configs, ""),
		"custom":                      kit.WatchThrough(one, own, "default"),
		"through the front-proxy":     kit.WatchThrough(proxied, configs, "default"),
		"through a virtual workspace": kit.WatchThrough(provider.ThroughExport("e", one.ClusterName), own, ""),
		"of bindings, through a virtual workspace": kit.WatchThrough(provider.ThroughExport("e", one.ClusterName), schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}, ""),
	}
	all := kit.WatchThrough(provider.ThroughExport("e", "*"), own, "")
	stays := map[string]watch.Interface{
		"another":                              kit.WatchThrough(other, own, ""),
		"another, through a virtual workspace": kit.WatchThrough(provider.ThroughExport("e", other.ClusterName), own, ""),
		"all, through a virtual workspace":     all,
	}
	ofShard, state := kit.WatchThrough(wildcard, configs, ""), kit.WatchThrough(one, logicalClusters, "")

	one.Patch(kit.LogicalClusterPath, deactivate)
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
		kit.Next(t, w, watch.Added, "after")
	}
	kit.Next(t, ofShard, watch.Added, "after-switched-off")
	kit.Next(t, state, watch.Modified, "cluster")

	// Watches of a provider must end if it becomes inactive.
	provider.Patch(kit.LogicalClusterPath, deactivate)
	untilEnded(t, "through the virtual workspace of the provider", all)
	other.Create(kit.WidgetsPath, "%s", kit.Widget("later", "size", 1))
	kit.Next(t, stays["another"], watch.Added, "later")
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
