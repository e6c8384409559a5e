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

func markOften(config *push.Config) { config.CheckpointInterval = 20 * time.Millisecond }

func checkpointsOf(cache *cacheServer, shard string) *client.Client[*replicationcheckpoints.ReplicationCheckpoint, *replicationcheckpoints.ReplicationCheckpointList] {
	return replicationcheckpoints.Checkpoints.In(cache.f.Shard(shard).Cluster(replicationcheckpoints.Cluster.Path()))
}

// markAt returns the checkpoint of a shard on a cache server, or an empty one.
func markAt(t testing.TB, cache *cacheServer, shard string) *replicationcheckpoints.ReplicationCheckpoint {
	t.Helper()
	mark, err := checkpointsOf(cache, shard).Get(t.Context(), replicationcheckpoints.Name, metav1.GetOptions{})
	if err != nil {
		return &replicationcheckpoints.ReplicationCheckpoint{}
	}
	return mark
}

// TestLagAndStaleness checks the metrics of lag on the pushing and of staleness on the reading side.
func TestLagAndStaleness(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	amber := newTestShard(t, "stale")
	marks := replicationcheckpoints.Checkpoints.Informer(cache.f.Shard("*").Wildcard(), client.InformerOptions[*replicationcheckpoints.ReplicationCheckpoint]{})
	start(t, "", marks.Run)
	observer := health.NewObserver("self", marks, func(shard string) bool { return shard != "left-over" }, cache.pushes)
	start(t, "", observer.Run)
	_, stop := replicate(t, amber, cache, markOften)
	for _, shard := range []string{"left-over", "self"} {
		_, err := checkpointsOf(cache, shard).Create(t.Context(), &replicationcheckpoints.ReplicationCheckpoint{ObjectMeta: metav1.ObjectMeta{Name: replicationcheckpoints.Name}, Number: 1}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	eventually(t, "the shard has a mark", func() bool {
		return markAt(t, cache, "stale").Resources[shardsResource].ResourceVersion != ""
	})
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	for _, until := range []string{"acknowledged", "checkpoint"} {
		eventually(t, "the lag until a change is "+until, func() bool {
			return measured(t, cache.pushes, "shardplane_replication_lag_seconds", map[string]string{"cache": t.Name(), "resource": shardsResource, "until": until}) > 0
		})
	}
	of := func(shard string) float64 {
		return measured(t, cache.pushes, "shardplane_replica_staleness_seconds", map[string]string{"name": shard})
	}
	eventually(t, "the shard is known", func() bool { return of("stale") > 0 })
	require.Less(t, of("left-over"), 0.0)
	require.Less(t, of("self"), 0.0)
	stop()
	eventually(t, "the shard gets stale", func() bool { return of("stale") > 0.5 })
	_, _ = replicate(t, amber, cache, markOften)
	eventually(t, "the shard has another mark", func() bool { return of("stale") < 0.5 })
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
