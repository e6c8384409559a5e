package integration

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
)

// TestTwoCaches: each cache to which a shard pushes has what that shard tells of consumers and of limited subtrees. When the
// first is away this goes on with the second, which others read then, and the first hears of all when it is back.
func TestTwoCaches(t *testing.T) {
	t.Parallel()
	e := start(t, harness.Options{Shards: 2, DevTokens: true, SecondCache: true})
	config := e.Cache()
	config.Host = e.Component("cache-server-2").URL
	caches := map[string]*client.Factory{"first": e.cache, "second": factory(t, config)}
	provider, consumer := newAPIKinds(e, "two-provider"), newAPIKindsOn(e, "two-consumer", 1)
	provider.export("e", provider.schema("v1", "widgets", "size"))
	provider.export("f", provider.schema("v1", "gadgets", "size"))
	_, err := kinds.LogicalClusters.In(e.proxy.Cluster(path("root:two-consumer"))).Patch(t.Context(), corev1alpha1.LogicalClusterName, mergePatch,
		[]byte(`{"metadata":{"annotations":{"core.shardplane.io/max-subtree-objects":"1000"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	// told waits until a cache says that shard-1 has consumers of these exports, and what it stores of the subtree.
	told := func(cache string, exports []string, enough func(objects int64) bool) int64 {
		t.Helper()
		shard := caches[cache].Shard("shard-1")
		uses := dynamicIn(t, shard, provider.cluster).Resource(inCaches("exportuses"))
		usages := dynamicIn(t, shard, consumer.cluster).Resource(inCaches("subtreeusages"))
		var got []string
		var objects int64
		var failed error
		require.True(t, assert.Eventually(t, func() bool {
			list, err := uses.List(t.Context(), metav1.ListOptions{})
			if failed = err; err != nil {
				return false
			}
			got = names(list.Items)
			usage, err := usages.Get(t.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{})
			if failed = err; err != nil {
				return false
			}
			objects, _ = field(usage, "used", "objects").(int64)
			return slices.Equal(got, exports) && enough(objects)
		}, 2*time.Minute, 50*time.Millisecond), "the %s cache has %v of %v, and %d objects: %v", cache, got, exports, objects, failed)
		return objects
	}
	consumer.bindPath(http.StatusCreated, "e", "root:two-provider", "e")
	consumer.until("e", "Ready", "True <nil>")
	some := func(objects int64) bool { return objects > 0 }
	told("first", []string{"e"}, some)
	before := told("second", []string{"e"}, some)

	e.Component("cache-server").Stop()
	consumer.bindPath(http.StatusCreated, "f", "root:two-provider", "f")
	consumer.until("f", "Ready", "True <nil>")
	for n := range 10 {
		consumer.create(configMaps, `{"metadata":{"name":"more-%d"}}`, n)
	}
	more := func(objects int64) bool { return objects >= before+10 }
	told("second", []string{"e", "f"}, more)
	url := e.Shard(1).Host + "/services/apiexport/" + provider.cluster + "/f"
	var says any
	require.True(t, assert.Eventually(t, func() bool {
		says = field(provider.get(apisV1+"apiexportendpointslices/f"), "status", "endpoints")
		return fmt.Sprint(says) == fmt.Sprintf("[map[url:%s]]", url)
	}, 2*time.Minute, 50*time.Millisecond), "the provider's shard knows of consumers at %v", says)

	shared := newCachedInTwoCaches(e)
	e.Component("cache-server").Start()
	told("first", []string{"e", "f"}, more)
	testCachedResourceInTwoCaches(e, shared, caches)
}

// newCachedInTwoCaches makes two workspaces whose cached resources have one identity. One cache is enough for both to be ready.
func newCachedInTwoCaches(e *env) (all [2]apiKinds) {
	const identity = `,"identity":{"secretRef":{"namespace":"default","name":"same"}}`
	for i := range all {
		k := newAPIKinds(e, fmt.Sprintf("two-cached-%d", i))
		k.create("/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"same"},"stringData":{"key":"it is the same in two caches"}}`)
		k.defineCluster("doubles", "Double")
		k.create("/apis/shared.example.org/v1/doubles", `{"apiVersion":"shared.example.org/v1","kind":"Double","metadata":{"name":"one"}}`)
		k.cached("CachedResource", "doubles", identity)
		all[i] = k
	}
	for _, k := range all {
		k.untilCached("CachedResource", "doubles", 1, 1)
	}
	return all
}

// testCachedResourceInTwoCaches: what a cached resource selects is in each cache, and it is gone when it is out of all of them,
// also where others have its identity.
func testCachedResourceInTwoCaches(e *env, shared [2]apiKinds, caches map[string]*client.Factory) {
	k := shared[0]
	k.t.Helper()
	gvr := schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: "doubles"}
	in := func(cache string, want ...string) {
		k.t.Helper()
		k.eventually(fmt.Sprintf("the %s cache has %v", cache, want), func() bool {
			list, err := dynamicIn(k.t, caches[cache].Shard("root"), k.cluster).Resource(gvr).List(k.t.Context(), metav1.ListOptions{})
			return apierrors.IsNotFound(err) && len(want) == 0 || err == nil && slices.Equal(names(list.Items), want)
		})
	}
	in("first", "one")
	in("second", "one")

	e.Component("cache-server-2").Stop()
	k.ask(http.StatusOK, http.MethodDelete, cacheV1+"cachedresources/doubles", "")
	in("first")
	deleting := k.untilSays("CachedResource", "doubles", "ReplicationStarted", "False", "Deleting")
	require.Equal(k.t, "Deleting", field(deleting, "status", "phase"), "it is in the second cache")
	k.eventually("it says what it waits for", func() bool {
		return strings.Contains(fmt.Sprint(field(k.get(cacheV1+"cachedresources/doubles"), "status", "conditions")), "A cache server cannot be asked")
	})
	e.Component("cache-server-2").Start()
	k.gone(cacheV1+"cachedresources", "doubles")
	in("second")
	shared[1].untilCached("CachedResource", "doubles", 1, 1)
}

// inCaches returns a resource of what shards tell each other.
func inCaches(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "cache.shardplane.io", Version: "v1alpha1", Resource: resource}
}
