package cacheserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
)

// TestFull fills the etcd of a cache server: what is new waits, changes and deletions arrive, who pushes says so, and
// goes on by itself when there is room.
func TestFull(t *testing.T) {
	// Between two looks at how full it is, which are a tenth of a second apart, less is written than is left. Nothing is
	// compacted, which could make room.
	const quota, size = 32 << 20, 64 << 10
	most := int64(quota)
	cache := newCacheServer(t, func(o *cacheserver.Options) { o.Etcd.QuotaBytes, o.Etcd.CompactionInterval = most, 0 })
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	for _, name := range []string{"one", "two"} {
		create(t, shards, object(shardsGVR, "Shard", name, map[string]any{"baseURL": "https://x"}))
	}
	config, _ := replicate(t, amber, cache, verifyOften, withoutAudits)
	start(t, "", replication.NewCaches("amber", replication.WatchedCache{Name: "full", Kubeconfig: "k", Cache: config.Cache, Pushed: true}).Run)
	trouble := func() bool {
		return measured(t, "shardplane_replication_cache_trouble", map[string]string{"cache": "full", "reason": "Full"}) == 1
	}
	requireReplicas(t, cache, []string{"amber|root|one", "amber|root|two"})

	filler := in(t, cache.f.Shard("filler"), "c", workspaceTypesGVR)
	fill := func(n int) error {
		_, err := filler.Create(t.Context(), object(workspaceTypesGVR, "WorkspaceType", fmt.Sprint("t-", n), map[string]any{"text": strings.Repeat("x", size)}), metav1.CreateOptions{})
		return err
	}
	made := 0
	for ; ; made++ {
		require.Less(t, made, quota/size, "nothing is refused")
		if err := fill(made); err != nil {
			var status apierrors.APIStatus
			require.ErrorAs(t, err, &status)
			require.EqualValues(t, http.StatusInsufficientStorage, status.Status().Code, "%v", err)
			require.ErrorContains(t, err, "the etcd of the cache server is nearly full")
			break
		}
	}
	require.Greater(t, made, quota/size/2)
	create(t, shards, object(shardsGVR, "Shard", "three", nil))
	_, err := shards.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://y"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, shards.Delete(t.Context(), "two", metav1.DeleteOptions{}))
	requireReplicas(t, cache, []string{"amber|root|one"})
	eventually(t, "the change arrives", func() bool {
		replica, err := in(t, cache.f.Shard("amber"), "root", shardsGVR).Get(t.Context(), "one", metav1.GetOptions{})
		return err == nil && fmt.Sprint(replica.Object["spec"]) == "map[baseURL:https://y]"
	})
	eventually(t, "it is said that the cache server is full", trouble)

	cache.stop()
	most *= 2
	cache.start(t)
	requireReplicas(t, cache, []string{"amber|root|one", "amber|root|three"}, config)
	eventually(t, "it is not said any more", func() bool { return !trouble() })
}

// TestSyntheticDelay holds that requests are held back for as long as is said.
func TestSyntheticDelay(t *testing.T) {
	const delay = 300 * time.Millisecond
	cache := newCacheServer(t, func(o *cacheserver.Options) { o.SyntheticDelay = delay })
	began := time.Now()
	_, err := in(t, cache.f.Shard("*"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), delay)
}
