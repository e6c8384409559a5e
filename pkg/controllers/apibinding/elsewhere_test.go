package apibinding

import (
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// TestNothingIsDeletedInDoubt: as long as it is not known what other shards export,
// another binding may take the objects over.
func TestNothingIsDeletedInDoubt(t *testing.T) {
	incomplete := fmt.Errorf("%w: the cache server is away", client.ErrIncomplete)
	for name, forget := range map[string]func(*world){
		"path": func(w *world) {
			w.r.resolve = func(logicalcluster.Path, string) (logicalcluster.Name, error) { return "", incomplete }
		},
		"export": func(w *world) {
			w.r.export = func(client.Key) (*apisv1alpha2.APIExport, error) { return nil, incomplete }
		},
		"schema": func(w *world) {
			w.r.schema = func(client.Key) (*metav1.PartialObjectMetadata, error) { return nil, incomplete }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.offer(widgetsOne)
			w.exports["e"].Status.IdentityHash, w.schemas[widgetsOne] = "h", widgetsOne
			w.bind("a")
			w.settle(t)
			w.bind("b")
			w.bindings["b"].Status.APIExportClusterName = ""
			w.objects["widgets/"+widgetsOne] = 3
			export, schema, resolve := w.r.export, w.r.schema, w.r.resolve
			forget(w)
			now := metav1.Now()
			w.bindings["a"].DeletionTimestamp = &now
			key := client.Key{Cluster: consumer, Name: "a"}
			result, err := w.r.reconcile(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, reconcile.Result{Backoff: true}, result)
			require.NotNil(t, w.bindings["a"])
			require.Equal(t, 3, w.objects["widgets/"+widgetsOne])

			w.r.export, w.r.schema, w.r.resolve = export, schema, resolve
			w.settle(t)
			require.Nil(t, w.bindings["a"])
			require.Equal(t, 3, w.objects["widgets/"+widgetsOne], "taken over")
		})
	}
}
