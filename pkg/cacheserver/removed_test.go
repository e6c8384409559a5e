package cacheserver_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/cacheserver"
)

// TestRemovedShards removes a shard: it may push no more, its replicas go after the grace period, also if the server
// restarts in between, and those of others stay. When it has a Shard again it may push.
func TestRemovedShards(t *testing.T) {
	t.Parallel()
	gracePeriod := time.Hour
	cache := newCacheServer(t, func(o *cacheserver.Options) { o.RemovedShardGracePeriod = gracePeriod })
	registered := in(t, cache.f.Shard("root"), "root", shardsGVR)
	push := func(shard, name string) error {
		_, err := in(t, cache.f.Shard(shard), "c", workspaceTypesGVR).Create(t.Context(), object(workspaceTypesGVR, "WorkspaceType", name, nil), metav1.CreateOptions{})
		return err
	}
	count := func(shard string) int {
		list := mustList(t, in(t, cache.f.Shard(shard), "*", workspaceTypesGVR), metav1.ListOptions{})
		return len(list.Items)
	}
	for _, shard := range []string{"blue", "green"} {
		create(t, registered, object(shardsGVR, "Shard", shard, nil))
		for n := range 3 {
			require.NoError(t, push(shard, fmt.Sprintf("t-%d", n)))
		}
	}
	require.NoError(t, push("lost", "t-0"), "a shard whose Shard was never observed must be allowed to write")
	own := cache.own(t)
	identified := func() float64 {
		return measured(t, own, "shardplane_cache_replicas", map[string]string{"name": "blue", "resource": "things:f0.g.io"})
	}
	pushCached(t, cache, "blue")
	eventually(t, "its replica of a cached resource is counted", func() bool { return identified() == 1 })
	require.NoError(t, registered.Delete(t.Context(), "blue", metav1.DeleteOptions{}))
	refused := func(err error) {
		t.Helper()
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, `shard "blue" was removed: its Shard was deleted in root`)
	}
	refused(push("blue", "t-4"))
	_, err := in(t, cache.f.Shard("blue"), "c", workspaceTypesGVR).Apply(t.Context(), "t-0", object(workspaceTypesGVR, "WorkspaceType", "t-0", nil), metav1.ApplyOptions{FieldManager: "x", Force: true})
	refused(err)
	require.NoError(t, push("green", "t-4"))

	// The Shard of root itself.
	create(t, registered, object(shardsGVR, "Shard", "root", nil))
	require.NoError(t, registered.Delete(t.Context(), "root", metav1.DeleteOptions{}))
	create(t, registered, object(shardsGVR, "Shard", "root", nil))

	before := count("blue")
	cache.stop()
	require.Equal(t, 3, before)
	gracePeriod = 0
	cache.start(t)
	refused(push("blue", "t-4"))
	eventually(t, "its replicas are deleted", func() bool { return count("blue") == 0 && identified() <= 0 })
	require.Equal(t, 4, count("green"))
	require.Equal(t, 1, count("lost"))
	refused(push("blue", "t-4"))

	create(t, registered, object(shardsGVR, "Shard", "blue", nil))
	require.NoError(t, push("blue", "t-5"))
	// Its new replicas are not deleted when the next removed shard is purged.
	create(t, registered, object(shardsGVR, "Shard", "later", nil))
	require.NoError(t, push("later", "t-0"))
	require.NoError(t, registered.Delete(t.Context(), "later", metav1.DeleteOptions{}))
	eventually(t, "the replicas of the next removed shard are deleted", func() bool { return count("later") == 0 })
	require.Equal(t, 1, count("blue"))
	require.Equal(t, 4, count("green"))
}

// pushCached has a shard push a cached resource, and an object of it under its identity.
func pushCached(t *testing.T, cache *cacheServer, shard string) {
	t.Helper()
	cached := object(schema.GroupVersionResource{Group: "cache.kcp.io", Version: "v1alpha1"}, "CachedResource", "things", map[string]any{"group": "g.io", "version": "v1", "resource": "things"})
	cached.SetAnnotations(map[string]string{apis.CachedKindAnnotation: "Thing", apis.CachedScopeAnnotation: "Cluster"})
	cached.Object["status"] = map[string]any{"identityHash": "f0"}
	create(t, in(t, cache.f.Shard(shard), "c", schema.GroupVersionResource{Group: "cache.kcp.io", Version: "v1alpha1", Resource: "cachedresources"}), cached)
	things := schema.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "things:f0"}
	var err error
	eventually(t, "the cached resource is served", func() bool {
		_, err = in(t, cache.f.Shard(shard), "c", things).Create(t.Context(), object(things, "Thing", "one", nil), metav1.CreateOptions{})
		return err == nil
	})
	require.NoError(t, err)
}
