package cacheserver_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/controllers/replication"
)

// TestSeveralCaches: a shard pushes to each cache server, even if another one is unreachable, which has everything
// when it is reachable again. A resource is removed when it is removed from all of them.
func TestSeveralCaches(t *testing.T) {
	t.Parallel()
	a := newCacheServer(t)
	b := &cacheServer{pushes: a.pushes, pki: a.pki, dataDir: t.TempDir()}
	b.start(t)
	b.f = factory(t, b.pki.master(t, b.url))
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "one", map[string]any{"baseURL": "https://x"}))
	configA, configB := replicationConfig(t, amber, a), replicationConfig(t, amber, b)
	configA.CacheName, configB.CacheName = t.Name()+"-a", t.Name()+"-b"
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

	for _, name := range []string{configA.CacheName, configB.CacheName} {
		require.Positive(t, measured(t, a.pushes, "shardplane_replication_operations_total", map[string]string{"cache": name, "operation": "create", "result": "success"}))
	}

	t.Log("a kind has left when it has left all of them")
	b.stop()
	impatient, cancel := context.WithTimeout(t.Context(), often)
	defer cancel()
	require.ErrorIs(t, configA.Table.Remove(impatient, shardsGVR.GroupResource()), context.DeadlineExceeded)
	requireReplicas(t, a, nil)
	b.start(t)
	removing, cancel := contextWithDeadline(t)
	defer cancel()
	require.NoError(t, configA.Table.Remove(removing, shardsGVR.GroupResource()))
	requireReplicas(t, b, nil)
}
