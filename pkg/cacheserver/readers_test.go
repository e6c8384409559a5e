package cacheserver_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// reader is an informer of the Shards on a cache server that records its events.
type reader struct {
	*client.Informer[*corev1alpha1.Shard]
	recorder
}

// newReader returns a reader that runs until the test ends.
func newReader(t *testing.T, cache *cacheServer) *reader {
	t.Helper()
	reads := replicas.NewCache("cache", cache.f, replicationcheckpoints.Read)
	everything := reads.Factory().Shard("*").Wildcard()
	checkpoints := replicationcheckpoints.Checkpoints.Informer(everything, client.InformerOptions[*replicationcheckpoints.ReplicationCheckpoint]{})
	note := func(cp *replicationcheckpoints.ReplicationCheckpoint) {
		reads.Note(checkpoints.KeyOf(cp).Shard, cp.Comparable())
	}
	checkpoints.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
		OnAdd:    func(cp *replicationcheckpoints.ReplicationCheckpoint, _ bool) { note(cp) },
		OnUpdate: func(_, cp *replicationcheckpoints.ReplicationCheckpoint) { note(cp) },
	})
	r := &reader{Informer: kinds.Shards.Informer(everything, client.InformerOptions[*corev1alpha1.Shard]{})}
	r.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(shard *corev1alpha1.Shard, _ bool) { r.add("add " + shard.Name) },
		OnUpdate: func(_, shard *corev1alpha1.Shard) { r.add("update " + shard.Name) },
		OnDelete: func(shard *corev1alpha1.Shard, _ bool) { r.add("delete " + shard.Name) },
	})
	start(t, "", checkpoints.Run)
	start(t, "", r.Run)
	return r
}

// has returns an error unless the reader has synced with that number of objects.
func (r *reader) has(objects int) error {
	if has, lacks := r.Lister().Len(), replicas.Lacks(r.Informer, []string{"amber"}); has != objects || len(lacks) > 0 {
		return errors.Join(fmt.Errorf("the reader has %d objects, and lacks checkpoints of %v", has, lacks), r.LastError())
	}
	return nil
}

// waitForEvent waits for an event.
func (r *reader) waitForEvent(t *testing.T, what string) {
	t.Helper()
	waitFor(t, what, func() error {
		if received := r.events(); !slices.Contains(received, what) {
			return fmt.Errorf("received %v", received)
		}
		return nil
	})
}

// snapshotOf returns a snapshot of the data of a cache server that is stopped.
func snapshotOf(t *testing.T, cache *cacheServer) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(etcd.Directory(cache.dataDir), "member", "snap", "db"))
	require.NoError(t, err)
	sum, file := sha256.Sum256(data), filepath.Join(t.TempDir(), "snapshot")
	require.NoError(t, os.WriteFile(file, append(data, sum[:]...), 0o600))
	return file
}

// TestReadersOfARestoredServer checks that readers see nothing of the past when the cache server is restored from a
// backup.
func TestReadersOfARestoredServer(t *testing.T) {
	t.Parallel()
	const objects = 20
	cache, amber := newCacheServer(t), newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	for n := range objects {
		create(t, shards, object(shardsGVR, "Shard", fmt.Sprintf("s-%02d", n), map[string]any{"baseURL": "https://x"}))
	}
	_, stopPushing := replicate(t, amber, cache, checkpointOften)
	r := newReader(t, cache)
	// Without a checkpoint of the shard, the reader accepts any content of the cache server.
	waitFor(t, "the reader has all objects and a checkpoint of the shard", func() error { return r.has(objects) })
	require.Contains(t, replicas.Lacks(r.Informer, []string{"amber", "blue"}), "blue", "a shard without a checkpoint must be reported")

	cache.stop()
	backup := snapshotOf(t, cache)
	cache.start(t)
	r.take()
	require.NoError(t, shards.Delete(t.Context(), "s-01", metav1.DeleteOptions{}))
	changed := mustGet(t, shards, "s-02")
	changed.SetLabels(map[string]string{"changed": "true"})
	_, err := shards.Update(t.Context(), changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	create(t, shards, object(shardsGVR, "Shard", "new", map[string]any{"baseURL": "https://x"}))
	for _, what := range []string{"delete s-01", "update s-02", "add new"} {
		r.waitForEvent(t, what)
	}
	r.take()

	stopPushing()
	cache.stop()
	cache.dataDir = t.TempDir()
	_, err = etcd.Restore(t.Context(), etcd.RestoreConfig{File: backup, DataDir: cache.dataDir, Want: etcd.Identity{Kind: etcd.KindCacheServer}, Prefix: "/shardplane-cache"})
	require.NoError(t, err)
	cache.start(t)
	// When a replica of another shard comes, the reader has read all of the older data.
	create(t, in(t, cache.f.Shard("blue"), "root", shardsGVR), object(shardsGVR, "Shard", "other", map[string]any{"baseURL": "https://x"}))
	r.waitForEvent(t, "add other")
	require.Equal(t, []string{"add other"}, r.take())
	replicate(t, amber, cache, checkpointOften)
	create(t, shards, object(shardsGVR, "Shard", "after", map[string]any{"baseURL": "https://x"}))
	r.waitForEvent(t, "add after")
	require.Equal(t, []string{"add after"}, r.take())
	require.NoError(t, r.has(objects+2))
}
