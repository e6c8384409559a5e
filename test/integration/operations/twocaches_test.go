package operations

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestTwoCaches: each cache to which a shard pushes has what that shard tells of consumers and of limited subtrees. When the
// first is away this goes on with the second, which others read then, and the first hears of all when it is back.
func TestTwoCaches(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops cache servers")
	}
	t.Parallel()
	e := kit.Start(t, harness.Options{Shards: 2, DevTokens: true, SecondCache: true})
	config := e.Cache()
	config.Host = e.Component("cache-server-2").URL
	caches := map[string]*client.Factory{"first": e.CacheClient, "second": kit.NewFactory(t, config)}
	provider, consumer := kit.NewWorkspaceClient(e, "two-provider"), kit.NewWorkspaceClientOn(e, "two-consumer", 1)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.CreateExport("f", provider.CreateSchema("v1", "gadgets", "size"))
	_, err := kinds.LogicalClusters.In(e.ProxyClient.Cluster(kit.Path("root:two-consumer"))).Patch(t.Context(), corev1alpha1.LogicalClusterName, kit.MergePatch,
		[]byte(`{"metadata":{"annotations":{"core.shardplane.io/max-subtree-objects":"1000"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	// told waits until a cache says that shard-1 has consumers of these exports, and what it stores of the subtree.
	told := func(cache string, exports []string, enough func(objects int64) bool) int64 {
		t.Helper()
		shard := caches[cache].Shard("shard-1")
		uses := kit.DynamicClient(t, shard, provider.ClusterName).Resource(inCaches("exportuses"))
		usages := kit.DynamicClient(t, shard, consumer.ClusterName).Resource(inCaches("subtreeusages"))
		var got []string
		var objects int64
		var failed error
		require.True(t, assert.Eventually(t, func() bool {
			list, err := uses.List(t.Context(), metav1.ListOptions{})
			if failed = err; err != nil {
				return false
			}
			got = kit.Names(list.Items)
			usage, err := usages.Get(t.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{})
			if failed = err; err != nil {
				return false
			}
			objects, _ = kit.Field(usage, "used", "objects").(int64)
			return slices.Equal(got, exports) && enough(objects)
		}, 2*time.Minute, 50*time.Millisecond), "the %s cache has %v of %v, and %d objects: %v", cache, got, exports, objects, failed)
		return objects
	}
	consumer.BindPath(http.StatusCreated, "e", "root:two-provider", "e")
	consumer.UntilBinding("e", "Ready", "True <nil>")
	some := func(objects int64) bool { return objects > 0 }
	told("first", []string{"e"}, some)
	before := told("second", []string{"e"}, some)

	e.Component("cache-server").Stop()
	consumer.BindPath(http.StatusCreated, "f", "root:two-provider", "f")
	consumer.UntilBinding("f", "Ready", "True <nil>")
	for n := range 10 {
		consumer.Create(kit.ConfigMapsPath, `{"metadata":{"name":"more-%d"}}`, n)
	}
	more := func(objects int64) bool { return objects >= before+10 }
	told("second", []string{"e", "f"}, more)
	url := e.Shard(1).Host + "/services/apiexport/" + provider.ClusterName + "/f"
	var says any
	require.True(t, assert.Eventually(t, func() bool {
		says = kit.Field(provider.Get(kit.APIsV1Alpha1+"apiexportendpointslices/f"), "status", "endpoints")
		return fmt.Sprint(says) == fmt.Sprintf("[map[url:%s]]", url)
	}, 2*time.Minute, 50*time.Millisecond), "the provider's shard knows of consumers at %v", says)

	shared := newCachedInTwoCaches(e)
	e.Component("cache-server").Start()
	told("first", []string{"e", "f"}, more)
	testCachedResourceInTwoCaches(e, shared, caches)
}

// newCachedInTwoCaches makes two workspaces whose cached resources have one identity. One cache is enough for both to be ready.
func newCachedInTwoCaches(e *kit.Env) (all [2]kit.WorkspaceClient) {
	const identity = `,"identity":{"secretRef":{"namespace":"default","name":"same"}}`
	for i := range all {
		k := kit.NewWorkspaceClient(e, fmt.Sprintf("two-cached-%d", i))
		k.Create("/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"same"},"stringData":{"key":"it is the same in two caches"}}`)
		k.DefineClusterScoped("doubles", "Double")
		k.Create("/apis/shared.example.org/v1/doubles", `{"apiVersion":"shared.example.org/v1","kind":"Double","metadata":{"name":"one"}}`)
		k.CreateCachedResource("CachedResource", "doubles", identity)
		all[i] = k
	}
	for _, k := range all {
		k.UntilCached("CachedResource", "doubles", 1, 1)
	}
	return all
}

// testCachedResourceInTwoCaches: what a cached resource selects is in each cache, and it is gone when it is out of all of them,
// also where others have its identity.
func testCachedResourceInTwoCaches(e *kit.Env, shared [2]kit.WorkspaceClient, caches map[string]*client.Factory) {
	k := shared[0]
	k.T.Helper()
	gvr := schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: "doubles"}
	in := func(cache string, want ...string) {
		k.T.Helper()
		k.Eventually(fmt.Sprintf("the %s cache has %v", cache, want), func() bool {
			list, err := kit.DynamicClient(k.T, caches[cache].Shard("root"), k.ClusterName).Resource(gvr).List(k.T.Context(), metav1.ListOptions{})
			return apierrors.IsNotFound(err) && len(want) == 0 || err == nil && slices.Equal(kit.Names(list.Items), want)
		})
	}
	in("first", "one")
	in("second", "one")

	e.Component("cache-server-2").Stop()
	k.Do(http.StatusOK, http.MethodDelete, kit.CachePath+"cachedresources/doubles", "")
	in("first")
	deleting := k.UntilCachedCondition("CachedResource", "doubles", "ReplicationStarted", "False", "Deleting")
	require.Equal(k.T, "Deleting", kit.Field(deleting, "status", "phase"), "it is in the second cache")
	k.Eventually("it says what it waits for", func() bool {
		return strings.Contains(fmt.Sprint(kit.Field(k.Get(kit.CachePath+"cachedresources/doubles"), "status", "conditions")), "A cache server cannot be asked")
	})
	e.Component("cache-server-2").Start()
	k.UntilGone(kit.CachePath+"cachedresources", "doubles")
	in("second")
	shared[1].UntilCached("CachedResource", "doubles", 1, 1)
}

// inCaches returns a resource of what shards tell each other.
func inCaches(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "cache.shardplane.io", Version: "v1alpha1", Resource: resource}
}
