package integration

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
)

// testBoundWatches: when a schema changes the watches of its resource end, those by
// identity too, and all others go on.
func testBoundWatches(t *testing.T, e *env) {
	provider, k := newAPIKinds(e, "watch-provider").in(t), newAPIKinds(e, "watch-consumer").in(t)
	identity := provider.export("e", provider.schema("v1", "widgets", "size"), provider.schema("v1", "gadgets", "size"))
	k.bind("e", provider, "e")
	k.until("e", "Ready", "True <nil>")
	follow := func(scope client.Scope, resource string) watch.Interface {
		clients, err := scope.Dynamic()
		require.NoError(t, err)
		w, err := clients.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: resource}).Watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		return w
	}
	here, everywhere := e.shards["root"].Cluster(path(k.cluster)), e.shards["root"].Wildcard()
	widgetsHere, gadgetsHere := follow(here, "widgets"), follow(here, "gadgets")
	widgetsAll, gadgetsAll := follow(everywhere, "widgets:"+identity), follow(everywhere, "gadgets:"+identity)

	const resources = `{"spec":{"resources":[{"group":"example.org","name":"widgets","schema":"v2.widgets.example.org","storage":{"crd":{}}},{"group":"example.org","name":"gadgets","schema":"%s.gadgets.example.org","storage":{"crd":{}}}]}}`
	provider.schema("v2", "widgets", "weight")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", fmt.Sprintf(resources, "v1"))
	for _, ended := range []watch.Interface{widgetsHere, widgetsAll} {
		select {
		case event, open := <-ended.ResultChan():
			require.False(t, open, "%v", event)
		case <-time.After(testTimeout):
			require.Fail(t, "a watch of the former schema goes on")
		}
	}
	goOn := func(name string) {
		k.create(strings.Replace(widgets, "widgets", "gadgets", 1), `{"apiVersion":"example.org/v1","kind":"Gadget","metadata":{"name":%q}}`, name)
		next(t, gadgetsHere, watch.Added, name)
		next(t, gadgetsAll, watch.Added, name)
	}
	goOn("unchanged")

	// Another schema that says the same is not another definition.
	provider.schema("v2", "gadgets", "size")
	provider.ask(http.StatusOK, http.MethodPatch, apisV2+"apiexports/e", fmt.Sprintf(resources, "v2"))
	k.eventually("the other schema is bound", func() bool {
		return strings.Contains(fmt.Sprint(field(k.get(apisV2+"apibindings/e"), "status", "boundResources")), "v2.gadgets.example.org")
	})
	goOn("same")
}
