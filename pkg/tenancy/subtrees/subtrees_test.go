package subtrees_test

import (
	"context"
	"iter"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
	"github.com/shardplane/shardplane/test/background"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	deadline = 30 * time.Second
	tick     = 5 * time.Millisecond
)

// world is a shard with its usage, and a cache server.
type world struct {
	here, cache *clienttest.Server
	sums        *subtrees.Sums
	clusters    *client.Informer[*corev1alpha1.LogicalCluster]
	usages      *client.Informer[*subtrees.SubtreeUsage]

	mu       sync.Mutex
	stored   map[logicalcluster.Name]subtrees.Amount
	known    bool
	notified map[logicalcluster.Name]int
}

func newWorld(t *testing.T) *world {
	w := &world{
		here: clienttest.New(t, kinds.Scheme), cache: clienttest.New(t, kinds.Scheme),
		stored: map[logicalcluster.Name]subtrees.Amount{}, notified: map[logicalcluster.Name]int{},
	}
	factory := func(server *clienttest.Server) *client.Factory {
		f, err := client.NewFactory(server.ClientConfig())
		require.NoError(t, err)
		t.Cleanup(f.CloseIdleConnections)
		return f
	}
	w.clusters = kinds.LogicalClusters.Informer(factory(w.here).Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{
		Indexers: map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{subtrees.Index: subtrees.IndexLimited},
	})
	w.usages = subtrees.Usages.Informer(factory(w.cache).Shard(request.Wildcard).Wildcard(), client.InformerOptions[*subtrees.SubtreeUsage]{})
	w.sums = subtrees.NewSubtreeSums(subtrees.Config{
		Self: "self", LogicalClusters: w.clusters, Others: w.usages,
		Stored: func() (iter.Seq2[logicalcluster.Name, subtrees.Amount], bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return maps.All(maps.Clone(w.stored)), w.known
		},
		ShardState: func(shard string) replicas.ShardState {
			if shard == "removed" {
				return replicas.Removed
			}
			return replicas.Active
		},
	})
	t.Cleanup(w.sums.Follow(func(top logicalcluster.Name) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.notified[top]++
	}))
	return w
}

func (w *world) run(t *testing.T) {
	for _, run := range []func(context.Context) error{w.clusters.Run, w.usages.Run, w.sums.Run} {
		background.Run(t.Context(), t, run)
	}
}

// store sets the usage of a logical cluster.
func (w *world) store(cluster logicalcluster.Name, objects, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = true
	w.stored[cluster] = subtrees.Amount{Objects: objects, Bytes: bytes}
	w.sums.Changed()
}

// cluster adds a logical cluster with annotations of limits.
func (w *world) cluster(t *testing.T, name, path string, limits ...string) {
	t.Helper()
	annotations := map[string]string{logicalcluster.AnnotationKey: name, core.LogicalClusterPathAnnotationKey: path}
	for i := 0; i < len(limits); i += 2 {
		annotations[limits[i]] = limits[i+1]
	}
	w.here.Put(t, kinds.LogicalClusters.GroupVersionResource, &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: corev1alpha1.LogicalClusterName, Annotations: annotations,
	}})
}

// other adds the SubtreeUsage of another shard.
func (w *world) other(t *testing.T, shard, top string, used subtrees.Amount, limit *subtrees.Limit) {
	t.Helper()
	w.cache.Put(t, subtrees.Usages.GroupVersionResource, &subtrees.SubtreeUsage{
		ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{logicalcluster.AnnotationKey: top, request.ShardAnnotation: shard}},
		Used:       used, Limit: limit,
	})
}

// within waits until a path is in certain subtrees.
func (w *world) within(t *testing.T, path string, want map[string]subtrees.Amount) {
	t.Helper()
	got := func() map[string]subtrees.Amount {
		found := map[string]subtrees.Amount{}
		for _, s := range w.sums.Of(path) {
			found[s.Path] = s.Used
		}
		return found
	}
	assert.Eventually(t, func() bool { return maps.Equal(want, got()) }, deadline, tick)
	require.Equal(t, want, got())
}

type sum = map[string]subtrees.Amount

func TestSums(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cluster(t, "oooo", "root:org", tenancy.MaxSubtreeObjectsAnnotation, "100")
	w.cluster(t, "tttt", "root:org:team", tenancy.MaxSubtreeBytesAnnotation, "1Ki")
	w.cluster(t, "nnnn", "root:organ", tenancy.MaxSubtreeBytesAnnotation, "0")
	w.cluster(t, "system:admin", "system:admin", tenancy.MaxSubtreeBytesAnnotation, "1")
	w.cluster(t, "aaaa", "root:org:team:a")
	w.cluster(t, "ffff", "root:far:away")
	far := &subtrees.Limit{Path: "root:far", Most: subtrees.Amount{Bytes: 7}}
	w.other(t, "blue", "oooo", subtrees.Amount{Objects: 10, Bytes: 1000}, nil)
	w.other(t, "green", "oooo", subtrees.Amount{Objects: 20, Bytes: 2000}, nil)
	w.other(t, "removed", "oooo", subtrees.Amount{Objects: 500}, nil)
	w.other(t, "removed", "gggg", subtrees.Amount{}, &subtrees.Limit{Path: "root:organ", Most: subtrees.Amount{Bytes: 7}})
	w.other(t, "self", "oooo", subtrees.Amount{Objects: 500}, nil) // an old one of this shard
	w.other(t, "blue", "rrrr", subtrees.Amount{Objects: 3}, far)
	w.run(t)
	_, known := w.sums.Share("oooo")
	require.False(t, known, "no share must be returned before all objects are counted")
	for i, cluster := range []logicalcluster.Name{"oooo", "tttt", "nnnn", "aaaa", "ffff", "system:admin", "unknown"} {
		w.store(cluster, int64(i+1), int64(i+1)*100)
	}

	org, team := subtrees.Amount{Objects: 1 + 2 + 4 + 30, Bytes: 700 + 3000}, subtrees.Amount{Objects: 2 + 4, Bytes: 600}
	w.within(t, "root:org:team:a:b", sum{"root:org": org, "root:org:team": team})
	w.within(t, "root:org", sum{"root:org": org})
	w.within(t, "root:organ", sum{})
	w.within(t, "root", sum{})
	w.within(t, "system:admin", sum{})
	w.within(t, "root:far:away:x", sum{"root:far": {Objects: 3 + 5, Bytes: 500}})

	var share *subtrees.SubtreeUsage
	require.Eventually(t, func() bool {
		share, known = w.sums.Share("oooo")
		return known
	}, deadline, tick)
	require.Equal(t, subtrees.Amount{Objects: 7, Bytes: 700}, share.Used)
	require.Equal(t, &subtrees.Limit{Path: "root:org", Most: subtrees.Amount{Objects: 100}}, share.Limit)
	share, known = w.sums.Share("rrrr")
	require.True(t, known)
	require.Equal(t, subtrees.Amount{Objects: 5, Bytes: 500}, share.Used)
	require.Nil(t, share.Limit, "only the shard with the top of the subtree must report the limit")
	share, known = w.sums.Share("gggg")
	require.True(t, known)
	require.Nil(t, share)

	// The inner limit is removed, the outer sum is kept, and followers are notified.
	w.mu.Lock()
	w.notified = map[logicalcluster.Name]int{}
	w.mu.Unlock()
	w.cluster(t, "tttt", "root:org:team")
	w.within(t, "root:org:team", sum{"root:org": org})
	w.mu.Lock()
	require.Equal(t, map[logicalcluster.Name]int{"tttt": 1}, w.notified, "only the changed share must be notified")
	w.mu.Unlock()

	// Deleted data is not counted, and there is no usage for the foreign subtree.
	w.store("ffff", 0, 0)
	w.within(t, "root:far", sum{"root:far": {Objects: 3}})
	share, _ = w.sums.Share("rrrr")
	require.Nil(t, share)
	w.cluster(t, "ffff", "root:org:moved")
	w.store("ffff", 1, 1)
	w.within(t, "root:org", sum{"root:org": {Objects: org.Objects + 1, Bytes: org.Bytes + 1}})
}

// TestLimitsOfSeveralShards: if several shards have the top of a subtree, the limit does not depend on the order of events.
func TestLimitsOfSeveralShards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store("aaaa", 1, 1)
	limit := func(shard string, most int64) {
		w.other(t, shard, "far", subtrees.Amount{Objects: 1}, &subtrees.Limit{Path: "root:far", Most: subtrees.Amount{Objects: most}})
	}
	limit("two", 20)
	w.run(t)
	w.within(t, "root:far", sum{"root:far": {Objects: 1}})
	require.EqualValues(t, 20, w.sums.Most("far").Objects)
	limit("removed", 30)
	limit("one", 10)
	w.within(t, "root:far", sum{"root:far": {Objects: 2}})
	require.EqualValues(t, 10, w.sums.Most("far").Objects, "the limit of the first shard by name must apply")
}
