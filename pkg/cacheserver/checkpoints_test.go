package cacheserver_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/replication/push"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const shardsResource = "shards.core.kcp.io"

func checkpointOften(config *push.Config) { config.CheckpointInterval = 20 * time.Millisecond }

func checkpointsOf(cache *cacheServer, shard string) *client.Client[*replicationcheckpoints.ReplicationCheckpoint, *replicationcheckpoints.ReplicationCheckpointList] {
	return replicationcheckpoints.Checkpoints.In(cache.f.Shard(shard).Cluster(replicationcheckpoints.Cluster.Path()))
}

// checkpointAt returns the checkpoint of a shard on a cache server, or an empty one.
func checkpointAt(t testing.TB, cache *cacheServer, shard string) *replicationcheckpoints.ReplicationCheckpoint {
	t.Helper()
	cp, err := checkpointsOf(cache, shard).Get(t.Context(), replicationcheckpoints.Name, metav1.GetOptions{})
	if err != nil {
		return &replicationcheckpoints.ReplicationCheckpoint{}
	}
	return cp
}

// TestLagAndStaleness checks the metrics of lag on the pushing and of staleness on the reading side.
func TestLagAndStaleness(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	amber := newTestShard(t, "stale")
	checkpoints := replicationcheckpoints.Checkpoints.Informer(cache.f.Shard("*").Wildcard(), client.InformerOptions[*replicationcheckpoints.ReplicationCheckpoint]{})
	start(t, "", checkpoints.Run)
	observer := health.NewObserver("self", checkpoints, func(shard string) bool { return shard != "orphaned" }, cache.pushes)
	start(t, "", observer.Run)
	_, stop := replicate(t, amber, cache, checkpointOften)
	for _, shard := range []string{"orphaned", "self"} {
		_, err := checkpointsOf(cache, shard).Create(t.Context(), &replicationcheckpoints.ReplicationCheckpoint{ObjectMeta: metav1.ObjectMeta{Name: replicationcheckpoints.Name}, Number: 1}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	eventually(t, "the shard has a checkpoint", func() bool {
		return checkpointAt(t, cache, "stale").Resources[shardsResource].ResourceVersion != ""
	})
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	for _, until := range []string{"acknowledged", "checkpoint"} {
		eventually(t, "the lag of changes is measured until="+until, func() bool {
			return measured(t, cache.pushes, "shardplane_replication_lag_seconds", map[string]string{"cache": t.Name(), "resource": shardsResource, "until": until}) > 0
		})
	}
	of := func(shard string) float64 {
		return measured(t, cache.pushes, "shardplane_replica_staleness_seconds", map[string]string{"name": shard})
	}
	eventually(t, "the staleness of the shard is measured", func() bool { return of("stale") > 0 })
	require.Less(t, of("orphaned"), 0.0)
	require.Less(t, of("self"), 0.0)
	stop()
	eventually(t, "the staleness increases", func() bool { return of("stale") > 0.5 })
	_, _ = replicate(t, amber, cache, checkpointOften)
	eventually(t, "the shard has a new checkpoint", func() bool { return of("stale") < 0.5 })
}

// measured returns the value of a metric, or the number of samples of a histogram;
// -1 if it has no such series.
func measured(t *testing.T, of prometheus.Gatherer, name string, labels map[string]string) float64 {
	t.Helper()
	all := series(t, of, name, labels)
	switch {
	case len(all) == 0:
		return -1
	case all[0].GetHistogram() != nil:
		return float64(all[0].GetHistogram().GetSampleCount())
	default:
		return all[0].GetGauge().GetValue() + all[0].GetCounter().GetValue()
	}
}
