package push

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/testutil"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
	"github.com/shardplane/shardplane/test/bubble"
)

const (
	modelResource = "shards.core.kcp.io"
	checkpointKey = "replicationcheckpoints.cache.shardplane.io/system:checkpoints|shard"
	// untilNoticed is by when the next comparison of digests has taken place, and its repairs.
	untilNoticed = 30 * time.Second
)

// replicated runs f in a bubble with a model whose objects are replicated.
func replicated(t *testing.T, of faults, f func(t *testing.T, m *model)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		m := newModel(t, 1, of)
		for range 30 {
			m.edit(m.shard)
		}
		m.start()
		defer m.end()
		m.arrives(t, untilNoticed)
		f(t, m)
	})
}

// arrives waits until the cache server is up to date.
func (m *model) arrives(t *testing.T, most time.Duration) {
	t.Helper()
	for began := time.Now(); !maps.Equal(m.wanted(), m.has()); <-time.After(100 * time.Millisecond) {
		require.Less(t, time.Since(began), most, "seed %d: want %v, have %v", m.seed, m.wanted(), m.has())
	}
}

// restarts returns how often all objects and replicas were read again.
func (m *model) restarts(t *testing.T) int {
	t.Helper()
	n, err := testutil.GetCounterMetricValue(newMetrics(m.config.Metrics).restarts.WithLabelValues(m.config.CacheName, modelResource))
	require.NoError(t, err)
	return int(n)
}

// cp returns the checkpoint on the cache server.
func (m *model) cp(t *testing.T) *replicationcheckpoints.ReplicationCheckpoint {
	t.Helper()
	m.cache.mu.Lock()
	defer m.cache.mu.Unlock()
	cp := &replicationcheckpoints.ReplicationCheckpoint{}
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(decoded(m.cache.objects[checkpointKey]).Object, cp))
	return cp
}

// damage changes a replica, deletes one and invents one without an event. It returns the keys of the first two.
func (m *model) damage() (keys []string) {
	m.cache.onCheckpoint = nil
	keys = slices.Sorted(maps.Keys(m.wanted()))[:2]
	m.cache.silently(func() {
		edited := decoded(m.cache.objects[keys[0]])
		edited.Object["spec"] = map[string]any{"n": int64(666)}
		m.cache.store(keys[0], "c0", edited)
		m.cache.remove(keys[1])
		m.cache.store(modelKey("c9", "invented"), "c9", modelShard("invented"))
	})
	return keys
}

// TestDigestsDetectLostEvents: digests find replicas that differ although no event has reported it. They are
// repaired one by one, without any list.
func TestDigestsDetectLostEvents(t *testing.T) {
	replicated(t, faults{}, func(t *testing.T, m *model) {
		<-time.After(time.Minute)
		keys, lists := m.damage(), m.cache.lists
		require.NotEqual(t, m.wanted(), m.has())
		m.arrives(t, untilNoticed)
		<-time.After(untilNoticed)
		require.Equal(t, []int{1, 1, 1}, m.repairs(t))
		require.Equal(t, lists, m.cache.lists)
		require.Zero(t, m.restarts(t))

		// Changes are replicated although no event has reported these replicas.
		m.shard.mu.Lock()
		changed := decoded(m.shard.objects[keys[0]])
		changed.Object["spec"] = map[string]any{"n": int64(1)}
		m.shard.store(keys[0], "c0", changed)
		m.shard.remove(keys[1])
		m.shard.mu.Unlock()
		m.arrives(t, time.Second)
	})
}

// TestOtherDataID: data with another ID is compared anew although its digests are the same.
func TestOtherDataID(t *testing.T) {
	replicated(t, faults{}, func(t *testing.T, m *model) {
		<-time.After(time.Minute)
		require.Zero(t, m.restarts(t))
		m.cache.locked(func() { m.cache.dataID++ })
		<-time.After(untilNoticed)
		require.Equal(t, 1, m.restarts(t))
		m.arrives(t, untilNoticed)
	})
}

// TestDigestsUnavailable checks that a cache server that does not return digests temporarily is not treated like one
// with other data, even if its history is compacted.
func TestDigestsUnavailable(t *testing.T) {
	replicated(t, faults{}, func(t *testing.T, m *model) {
		<-time.After(time.Minute)
		m.cache.locked(func() { m.cache.ill = true })
		<-time.After(untilNoticed)
		m.cache.breakWatches(true)
		m.edit(m.shard)
		<-time.After(untilNoticed)
		m.cache.locked(func() { m.cache.ill = false })
		m.edit(m.shard)
		m.arrives(t, untilNoticed)
		<-time.After(time.Minute)
		require.Zero(t, m.restarts(t))
	})
}

// TestCheckpoints checks that checkpoints are renewed without changes, also by the next process. The loss of a checkpoint
// causes a new comparison, and the restore of the shard from an older backup a new epoch.
func TestCheckpoints(t *testing.T) {
	replicated(t, faults{}, func(t *testing.T, m *model) {
		<-time.After(time.Minute)
		first := m.cp(t)
		require.NotEmpty(t, first.Epoch)
		require.EqualValues(t, len(m.wanted()), first.Resources[modelResource].Count)
		<-time.After(time.Minute)
		require.GreaterOrEqual(t, m.cp(t).Number, first.Number+5)
		m.stop()
		m.start()
		<-time.After(time.Minute)
		second := m.cp(t)
		require.Equal(t, first.Epoch, second.Epoch)
		require.GreaterOrEqual(t, second.Number, first.Number+10)

		m.cache.locked(func() { m.cache.remove(checkpointKey) })
		<-time.After(time.Minute)
		require.Equal(t, first.Epoch, m.cp(t).Epoch, "the epoch must be kept, because the shard has the same data")
		require.Equal(t, 1, m.restarts(t), "the replication must restart, because the cache server may have other data")

		m.save(m.shard)
		m.edit(m.shard)
		m.arrives(t, untilNoticed)
		<-time.After(time.Minute)
		m.stop()
		m.cache.locked(func() { m.cache.onCheckpoint = nil })
		m.restore(m.shard)
		m.start()
		m.arrives(t, untilNoticed)
		<-time.After(time.Minute)
		require.Greater(t, m.cp(t).Epoch, first.Epoch)
	})
}

// TestResourcesAreAddedAndRemoved removes a resource from the table while the cache server is unreachable, and adds it again.
func TestResourcesAreAddedAndRemoved(t *testing.T) {
	replicated(t, faults{}, func(t *testing.T, m *model) {
		resource := replication.Resource{}
		lines, _ := m.config.Table.Lines()
		for _, l := range lines {
			resource = l.Resource
		}
		for range 2 {
			m.fails(100)
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			require.ErrorIs(t, m.config.Table.Remove(short, resource.GroupResource()), context.DeadlineExceeded)
			cancel()
			require.NotEmpty(t, m.has())
			m.fails(0)
			m.cache.onCheckpoint = nil
			require.NoError(t, m.config.Table.Remove(t.Context(), resource.GroupResource()))
			require.Empty(t, m.has())
			require.NoError(t, m.config.Table.Add(resource))
			m.arrives(t, untilNoticed)
		}
	})
}

// TestReplicaIsDeletedAsCompared checks that an orphaned replica is only deleted in the compared version. Here another
// client replaces it just before.
func TestReplicaIsDeletedAsCompared(t *testing.T) {
	replicated(t, faults{}, func(t *testing.T, m *model) {
		m.stop()
		m.cache.onCheckpoint = nil
		left := func(n int64) {
			m.cache.mu.Lock()
			defer m.cache.mu.Unlock()
			obj := modelShard("left")
			obj.Object["spec"] = map[string]any{"n": n}
			m.cache.store(modelKey("c0", "left"), "c0", obj)
		}
		statuses := make(chan int, 10)
		var replace sync.Once
		transport := roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodDelete {
				return m.cache.RoundTrip(req)
			}
			replace.Do(func() { left(2) })
			response, err := m.cache.RoundTrip(req)
			if err == nil {
				statuses <- response.StatusCode
			}
			return response, err
		})
		var err error
		m.config.Cache, err = client.NewFactory(&rest.Config{Host: "http://model", Transport: transport})
		require.NoError(t, err)
		left(1)
		m.start()
		m.arrives(t, untilNoticed)
		require.Equal(t, http.StatusConflict, <-statuses)
		require.Equal(t, http.StatusOK, <-statuses)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
