package push

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/bubble"
)

// faults selects the failures of a model.
type faults struct {
	name string
	// wild includes writes of other clients, and servers that lose data or are restored.
	wild bool
}

// model is a shard whose objects are replicated to a cache server.
type model struct {
	faults
	t            *testing.T
	seed         uint64
	random       *rand.Rand
	shard, cache *modelServer
	config       Config
	stop         func()
	// saved are backups of the servers.
	saved map[*modelServer]backup
}

type backup struct {
	objects  map[string][]byte
	revision int64
}

func newModel(t *testing.T, seed uint64, of faults) *model {
	t.Helper()
	m := &model{faults: of, t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 99)), shard: newModelServer(seed, ""), cache: newModelServer(seed, "amber"), saved: map[*modelServer]backup{}}
	m.cache.late = of.wild
	m.config = Config{
		Metrics: prometheus.NewRegistry(), CacheName: "cache",
		Shard: "amber", Local: m.shard.factory(t), Cache: m.cache.factory(t),
	}
	var err error
	m.config.Table, err = replication.NewTable(replication.Resource{GroupVersionResource: corev1alpha1.SchemeGroupVersion.WithResource("shards"), Filter: tenancy.Replicated})
	require.NoError(t, err)
	if !of.wild {
		m.cache.onCheckpoint = m.requireCheckpoint
	}
	return m
}

// start starts the engine.
func (m *model) start() {
	m.t.Helper()
	controller, err := NewPushController(m.config)
	require.NoError(m.t, err)
	m.stop = background.Run(klog.NewContext(context.Background(), logr.Discard()), m.t, controller.Run)
}

// end stops the engine and waits for requests that arrive late.
func (m *model) end() {
	m.stop()
	m.shard.stray.Wait()
	m.cache.stray.Wait()
}

func modelShard(name string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "core.kcp.io/v1alpha1", "kind": "Shard"}}
	obj.SetName(name)
	return obj
}

// replicatedShard returns an object that is to be replicated.
func replicatedShard(name string) *unstructured.Unstructured {
	obj := modelShard(name)
	obj.SetLabels(map[string]string{"internal.kcp.io/replicate": "x"})
	return obj
}

func modelKey(cluster, name string) string { return "shards.core.kcp.io/" + cluster + "|" + name }

// edit writes something to a server, or deletes it.
func (m *model) edit(at *modelServer) {
	at.mu.Lock()
	defer at.mu.Unlock()
	cluster, name := fmt.Sprintf("c%d", at.rand.IntN(3)), fmt.Sprintf("s-%d", at.rand.IntN(12))
	key := modelKey(cluster, name)
	text, found := at.objects[key]
	if found && at.rand.IntN(4) == 0 {
		at.remove(key)
		return
	}
	obj := decoded(text)
	if !found || at.rand.IntN(6) == 0 {
		obj = replicatedShard(name)
	}
	if at.rand.IntN(5) == 0 { // selected, or not any more
		obj.SetLabels(map[string]string{"internal.kcp.io/replicate": []string{"", "x"}[at.rand.IntN(2)]})
	}
	obj.Object["spec"] = map[string]any{"n": at.rand.Int64()}
	at.store(key, cluster, obj)
}

// rewrite changes the content of a replica.
func (m *model) rewrite() {
	m.cache.mu.Lock()
	defer m.cache.mu.Unlock()
	for key, text := range m.cache.objects {
		if cluster, _, ok := strings.Cut(strings.TrimPrefix(key, "shards.core.kcp.io/"), "|"); ok && strings.HasPrefix(key, "shards.") {
			obj := decoded(text)
			obj.Object["spec"] = map[string]any{"n": "rewritten"}
			m.cache.store(key, cluster, obj)
			return
		}
	}
}

// brief writes an object to the shard that is deleted again while its replica is being written.
func (m *model) brief() {
	s := m.shard
	name := fmt.Sprintf("brief-%d", m.random.IntN(1000))
	key := modelKey("c0", name)
	s.locked(func() { s.store(key, "c0", replicatedShard(name)) })
	<-time.After(time.Duration(m.random.IntN(120)) * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[key] != nil {
		s.remove(key)
	}
}

// step has something happen.
func (m *model) step() {
	switch n := m.random.IntN(100); {
	case n < 20:
		m.brief()
	case n < 60:
		for range m.random.IntN(4) {
			m.edit(m.shard)
		}
	case n < 65:
		m.shard.breakWatches(false)
		for range 5 { // before any client watches again
			m.edit(m.shard)
		}
		m.shard.breakWatches(n < 63)
	case n < 70:
		m.cache.breakWatches(n == 65)
	case n < 72: // a restart of the shard
		m.stop()
		m.edit(m.shard)
		m.start()
	case n < 74:
		m.outage()
	case !m.wild:
	case n < 84:
		m.edit(m.cache)
	case n < 86:
		m.save(m.cache)
	case n < 87:
		m.save(m.shard)
	case n < 89:
		m.loseData()
	case n < 91:
		m.restore(m.cache)
	case n < 92: // the shard is not there meanwhile
		m.stop()
		m.restore(m.shard)
		m.start()
	}
	<-time.After(time.Duration(m.random.IntN(60)) * time.Millisecond)
	if m.random.IntN(20) == 0 {
		<-time.After(time.Duration(m.random.IntN(30)) * time.Second)
	}
}

// outage makes the cache server unavailable for a while.
func (m *model) outage() {
	m.fails(100)
	m.cache.breakWatches(false)
	m.edit(m.shard)
	<-time.After(5 * time.Second)
	m.fails(20)
}

// fails has so many of a hundred requests to the cache server fail.
func (m *model) fails(n int) {
	m.cache.locked(func() { m.cache.failing = n })
}

func (m *model) save(s *modelServer) {
	s.locked(func() { m.saved[s] = backup{maps.Clone(s.objects), s.revision} })
}

// loseData removes the data of the cache server.
func (m *model) loseData() {
	s := m.cache
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects, s.revision, s.dataID = map[string][]byte{}, 5, s.dataID+1
	if s.rand.IntN(2) == 0 { // versions soon exceed the previous ones
		s.revision = 100000
	}
	s.broke(true)
	delete(m.saved, s)
}

// restore has a server have the data that it had once.
func (m *model) restore(s *modelServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := m.saved[s]; ok {
		s.objects, s.revision = maps.Clone(old.objects), old.revision
		s.broke(true)
	}
}

// wanted returns the expected replicas by key: the version of the object and its spec.
func (m *model) wanted() map[string]string {
	m.shard.mu.Lock()
	defer m.shard.mu.Unlock()
	want := map[string]string{}
	for key, text := range m.shard.objects {
		if obj := decoded(text); tenancy.Replicated(obj) {
			want[key] = obj.GetResourceVersion() + fmt.Sprint(obj.Object["spec"], obj.GetLabels())
		}
	}
	return want
}

func (m *model) has() map[string]string {
	m.cache.mu.Lock()
	defer m.cache.mu.Unlock()
	has := map[string]string{}
	for key, text := range m.cache.objects {
		if obj := decoded(text); strings.HasPrefix(key, "shards.") {
			has[key] = obj.GetAnnotations()[request.OriginalVersionAnnotation] + fmt.Sprint(obj.Object["spec"], obj.GetLabels())
		}
	}
	return has
}

// requireCheckpoint checks that a checkpoint only covers existing replicas, under the lock of the cache server.
func (m *model) requireCheckpoint(cp map[string]any) {
	covered, _, _ := unstructured.NestedString(cp, "resources", "shards.core.kcp.io", "resourceVersion")
	upTo, err := strconv.ParseInt(covered, 10, 64)
	if err != nil {
		return
	}
	m.shard.mu.Lock()
	defer m.shard.mu.Unlock()
	for key, text := range m.shard.objects {
		obj := decoded(text)
		if version, _ := strconv.ParseInt(obj.GetResourceVersion(), 10, 64); version > upTo {
			continue // it may be there as it is or was, or not at all
		}
		replica, there := m.cache.objects[key]
		if there != tenancy.Replicated(obj) || there && decoded(replica).GetAnnotations()[request.OriginalVersionAnnotation] != obj.GetResourceVersion() {
			m.t.Errorf("seed %d: the checkpoint has version %s, but %s at version %s is replicated as %s", m.seed, covered, key, obj.GetResourceVersion(), replica)
		}
	}
	for key := range m.cache.objects {
		if _, there := m.shard.objects[key]; strings.HasPrefix(key, "shards.") && !there && m.deletedBy(key, upTo) {
			m.t.Errorf("seed %d: the checkpoint has version %s, but %s was deleted before", m.seed, covered, key)
		}
	}
}

// deletedBy reports whether an object was deleted before a version, as far as the history goes back.
func (m *model) deletedBy(key string, version int64) bool {
	for _, e := range slices.Backward(m.shard.history) {
		if e.key == key {
			return e.revision <= version
		}
	}
	return m.shard.compacted <= version
}

// repairs returns how many replicas digests have shown to be missing, different and orphaned.
func (m *model) repairs(t *testing.T) (counts []int) {
	t.Helper()
	for _, problem := range []replication.Problem{replication.ProblemMissing, replication.ProblemDifferent, replication.ProblemOrphaned} {
		n, err := testutil.GetCounterMetricValue(newMetrics(m.config.Metrics).repairs.WithLabelValues(m.config.CacheName, modelResource, string(problem)))
		require.NoError(t, err)
		counts = append(counts, int(n))
	}
	return counts
}

// TestEngineModel checks that the cache server is eventually up to date after any failures. If only the shard fails,
// checkpoints must always be correct, and digests must find nothing to repair.
func TestEngineModel(t *testing.T) {
	for _, of := range []faults{{name: "calm"}, {name: "wild", wild: true}} {
		t.Run(of.name, func(t *testing.T) {
			for seed := range bubble.Seeds(5, 2) {
				bubble.Test(t, func(t *testing.T) { runModel(t, seed, of) })
			}
		})
	}
}

func runModel(t *testing.T, seed uint64, of faults) {
	t.Helper()
	m := newModel(t, seed, of)
	for range 20 {
		m.edit(m.shard)
		if of.wild {
			m.edit(m.cache)
		}
	}
	m.cache.failing = 20
	m.start()
	for range 150 {
		m.step()
	}
	m.fails(0)
	m.arrives(t, 20*time.Minute)
	<-time.After(5 * time.Minute)
	require.Equal(t, m.wanted(), m.has(), "seed %d: the replicas must stay up to date", seed)
	m.requireDigests()
	if !of.wild {
		require.Equal(t, []int{0, 0, 0}, m.repairs(t), "seed %d: digests must not find differences", seed)
	}
	m.reconnects()
	m.cache.locked(func() { m.cache.onCheckpoint = nil }) // others write now
	m.rewrite()
	m.arrives(t, 20*time.Second) // because of the next digests
	m.end()
}

// requireDigests checks the digest in the checkpoint.
func (m *model) requireDigests() {
	m.cache.mu.Lock()
	defer m.cache.mu.Unlock()
	cp, root := decoded(m.cache.objects[checkpointKey]), m.cache.table().Root()
	extent, _, _ := unstructured.NestedMap(cp.Object, "resources", "shards.core.kcp.io")
	require.EqualValues(m.t, root.Count, extent["count"], "seed %d", m.seed)
	require.Equal(m.t, root.Digest.String(), extent["digest"], "seed %d", m.seed)
}

// reconnects checks that a new process, or one after a loss of history, only reads digests and only writes checkpoints
// if nothing has changed.
func (m *model) reconnects() {
	m.t.Helper()
	objects := func() (lists int, versions []string) {
		m.cache.mu.Lock()
		defer m.cache.mu.Unlock()
		for key, text := range m.cache.objects {
			if strings.HasPrefix(key, "shards.") {
				versions = append(versions, decoded(text).GetResourceVersion())
			}
		}
		slices.Sort(versions)
		return m.cache.lists, versions
	}
	lists, versions := objects()
	m.stop()
	m.start()
	<-time.After(time.Minute)
	m.cache.breakWatches(true)
	<-time.After(time.Minute)
	listed, now := objects()
	require.Equal(m.t, versions, now, "seed %d", m.seed)
	require.Equal(m.t, lists, listed, "seed %d", m.seed)
}
