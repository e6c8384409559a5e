package cacheserver_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/controllers/replication"
)

// TestSeveralCaches holds that a shard pushes to each cache server, whatever is with the others: one
// that is away, was wiped, or was written to by others gets what it should have as soon as it can.
func TestSeveralCaches(t *testing.T) {
	a := newCacheServer(t)
	b := &cacheServer{pki: a.pki, dataDir: t.TempDir()}
	b.start(t)
	b.f = factory(t, b.pki.master(t, b.url))
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "one", map[string]any{"baseURL": "https://x"}))
	configA, configB := replicationConfig(t, amber, a), replicationConfig(t, amber, b)
	configA.CacheName, configB.CacheName = "eu-a", "eu-b"
	configB.Table = configA.Table
	verifyOften(&configA)
	verifyOften(&configB)
	b.stop()
	all, err := replication.NewAll(configA, configB)
	require.NoError(t, err)
	start(t, "", all.Run)

	requireReplicas(t, a, []string{"amber|root|one"}, configA)
	create(t, shards, object(shardsGVR, "Shard", "two", nil))
	requireReplicas(t, a, []string{"amber|root|one", "amber|root|two"}, configA)
	b.start(t)
	requireReplicas(t, b, []string{"amber|root|one", "amber|root|two"}, configB)

	t.Log("one is cut off, and behind, and then has lost everything")
	b.stop()
	_, err = shards.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://y"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, shards.Delete(t.Context(), "two", metav1.DeleteOptions{}))
	requireReplicas(t, a, []string{"amber|root|one"}, configA)
	b.start(t)
	requireReplicas(t, b, []string{"amber|root|one"}, configB)
	b.stop()
	b.dataDir = t.TempDir()
	b.start(t)
	requireReplicas(t, b, []string{"amber|root|one"}, configB)
	require.NoError(t, in(t, b.f.Shard("amber"), "root", shardsGVR).Delete(t.Context(), "one", metav1.DeleteOptions{}))
	requireReplicas(t, b, []string{"amber|root|one"}, configB)

	for _, name := range []string{"eu-a", "eu-b"} {
		require.Positive(t, measured(t, "shardplane_replication_operations_total", map[string]string{"cache": name, "operation": "create", "result": "success"}))
	}

	t.Log("a kind has left when it has left all of them")
	b.stop()
	impatient, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, configA.Table.Remove(impatient, shardsGVR.GroupResource()), context.DeadlineExceeded)
	requireReplicas(t, a, nil)
	b.start(t)
	removing, cancel := contextWithDeadline(t)
	defer cancel()
	require.NoError(t, configA.Table.Remove(removing, shardsGVR.GroupResource()))
	requireReplicas(t, b, nil)
}
