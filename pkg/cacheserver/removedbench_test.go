package cacheserver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/storage"
)

// BenchmarkPurge deletes 10,000 replicas of 4 KiB of a removed shard.
func BenchmarkPurge(b *testing.B) {
	const replicas = 10_000
	o := etcd.NewOptions(b.TempDir(), defaultPrefix)
	h, err := o.Open(b.Context())
	require.NoError(b, err)
	defer h.Stop()
	types := schema.GroupResource{Group: "tenancy.kcp.io", Resource: "workspacetypes"}
	r, err := newRemovedShards(b.Context(), h, time.Hour, func(shard string) ([]string, bool) {
		return []string{storage.ResourcePrefix(types) + "/" + shard + "/"}, true
	})
	require.NoError(b, err)
	value := strings.Repeat("x", 4096)
	key := func(shard string, n int) string {
		return h.Prefix() + storage.ResourcePrefix(types) + fmt.Sprintf("/%s/c/t-%d", shard, n)
	}
	_, err = h.Client().Client.Put(b.Context(), key("bluer", 0), value)
	require.NoError(b, err)
	for b.Loop() {
		b.StopTimer()
		for n := range replicas {
			_, err := h.Client().Client.Put(b.Context(), key("blue", n), value)
			require.NoError(b, err)
		}
		b.StartTimer()
		require.NoError(b, r.purgeShard(b.Context(), "blue"))
		b.StopTimer()
		for shard, stays := range map[string]bool{"blue": false, "bluer": true} {
			there, err := r.notes.There(b.Context(), storage.ResourcePrefix(types)+fmt.Sprintf("/%s/c/t-0", shard))
			require.NoError(b, err)
			require.Equal(b, stays, there, shard)
		}
		b.StartTimer()
	}
}
