package verify

import (
	"bytes"
	"io"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestNonLeaderReportsNoOrphans checks that replicas of CachedResources are not reported as orphaned if the replica of the shard is
// not the leader and does not serve their objects.
func TestNonLeaderReportsNoOrphans(t *testing.T) {
	t.Parallel()
	types := runtime.NewScheme()
	require.NoError(t, cachev1alpha1.AddToScheme(types))
	factory := func(of *clienttest.Server) *client.Factory {
		f, err := client.NewFactory(of.ClientConfig())
		require.NoError(t, err)
		t.Cleanup(f.CloseIdleConnections)
		return f
	}
	shard, cache := clienttest.New(t, types), clienttest.New(t, types)
	flavors := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "flavors:f00"}
	replica := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "Flavor"}}
	replica.SetName("large")
	replica.SetAnnotations(map[string]string{logicalcluster.AnnotationKey: "c", request.ShardAnnotation: "one"})
	cache.Put(t, flavors, replica)

	cached := &cachev1alpha1.CachedResource{
		ObjectMeta: metav1.ObjectMeta{Name: "flavors", Annotations: map[string]string{logicalcluster.AnnotationKey: "c", apis.CachedKindAnnotation: "Flavor"}},
		Spec:       cachev1alpha1.CachedResourceSpec{GroupVersionResource: cachev1alpha1.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "flavors"}},
		Status:     cachev1alpha1.CachedResourceStatus{IdentityHash: "f00", ResourceCounts: &cachev1alpha1.ResourceCount{}},
	}
	compare := func(replicas int) (out string, err error) {
		cached.Status.ResourceCounts.Cache = replicas
		shard.Put(t, kinds.CachedResources.GroupVersionResource, cached)
		var written bytes.Buffer
		v := &verifier{out: &written, progress: io.Discard, replicated: map[string]sets.Set[schema.GroupVersionResource]{}}
		all, err := v.selected(t.Context(), map[string]*client.Factory{"one": factory(shard)})
		require.NoError(t, err)
		require.Equal(t, []replication.Resource{{GroupVersionResource: flavors}}, all)
		shard.Fail(404)
		defer shard.Fail(0)
		err = v.compare(t.Context(), "one", factory(shard), factory(cache), all[0], &kind{resource: flavors.GroupResource()})
		return written.String(), err
	}
	out, err := compare(1)
	require.ErrorContains(t, err, "not the leading replica of the shard")
	require.Empty(t, out)
	out, err = compare(0)
	require.NoError(t, err)
	require.Equal(t, "one c flavors:f00.example.org large: orphaned\n", out)
}
