package cacheserver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/etcd"
)

// TestUnregisteredShards checks that a shard with replicas but without a Shard is reported until it is registered, after
// the Shards have been loaded. A removed shard is not reported.
func TestUnregisteredShards(t *testing.T) {
	t.Parallel()
	o := etcd.NewOptions(t.TempDir(), defaultPrefix)
	o.UnsafeNoFsync = true
	h, err := o.Open(t.Context())
	require.NoError(t, err)
	defer h.Stop()
	r, err := newRemovedShards(t.Context(), h, time.Hour, nil)
	require.NoError(t, err)
	u := newUnregisteredShards(r, func() sets.Set[string] { return sets.New("stranger", "removed", "root") }, nil)
	register := func(shard string) {
		_, err := h.Client().Client.Put(t.Context(), h.Prefix()+shardKey(shard), "{}")
		require.NoError(t, err)
	}
	unregister := func(shard string) {
		_, err := h.Client().Client.Delete(t.Context(), h.Prefix()+shardKey(shard))
		require.NoError(t, err)
	}
	found := func() []string {
		names, err := u.find(t.Context())
		require.NoError(t, err)
		return sets.List(names)
	}
	require.NoError(t, r.recordDeletion(t.Context(), "removed"))
	register("other")
	require.Empty(t, found(), "shards must not be reported before root is registered")
	register("root")
	require.Equal(t, []string{"stranger"}, found())
	register("stranger")
	require.Empty(t, found())
	unregister("stranger")
	require.Equal(t, []string{"stranger"}, found())
	unregister("root")
	require.Empty(t, found())

	reported := func() bool { return u.gauge.Delete(map[string]string{"name": "stranger"}) }
	u.update(t.Context(), sets.New("stranger"))
	require.True(t, reported())
	u.update(t.Context(), sets.New("stranger"))
	u.update(t.Context(), nil)
	require.False(t, reported())
}
