package apis

import (
	"fmt"
	"strings"
	"testing"

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
		next(t, gadgetsHere, watch.Added, name)
		next(t, gadgetsAll, watch.Added, name)
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
