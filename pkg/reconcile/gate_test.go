package reconcile

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/shards"
	"github.com/shardplane/shardplane/test/background"
)

type fakeGate struct {
	mu             sync.Mutex
	open           map[uint64]bool
	begun, refused map[uint64]int
	cancel         context.CancelFunc
}

func (g *fakeGate) Begin(ctx context.Context, hash uint64) (context.Context, func(), bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open[hash] {
		g.refused[hash]++
		return ctx, func() {}, false
	}
	g.begun[hash]++
	ctx, g.cancel = context.WithCancel(ctx)
	cancel := g.cancel
	return ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.begun[hash]--
		cancel()
	}, true
}

// TestGate: keys that a gate rejects are dropped, and canceled work is not retried.
func TestGate(t *testing.T) {
	mine, others := client.Key{Cluster: "mine", Name: "a"}, client.Key{Cluster: "others", Name: "a"}
	g := &fakeGate{open: map[uint64]bool{client.HashOf("mine"): true}, begun: map[uint64]int{}, refused: map[uint64]int{}}
	queues := make(chan Queue[client.Key], 1)
	worked := make(chan client.Key)
	start(t, New(Config[client.Key]{
		Name: "gated", Gate: g,
		Sources: []Source[client.Key]{func(_ context.Context, queue Queue[client.Key]) (func(), error) {
			queues <- queue
			return func() {}, nil
		}},
		Reconcile: func(ctx context.Context, key client.Key) (Result, error) {
			g.mu.Lock()
			begun := g.begun[client.HashOf(key.Cluster.String())]
			g.mu.Unlock()
			if begun != 1 {
				t.Errorf("%s: %d workers are running", key, begun)
			}
			worked <- key
			<-ctx.Done()
			return Result{}, ctx.Err()
		},
	}))
	queue := <-queues
	queue.Add(others)
	queue.Add(mine)
	require.Equal(t, mine, <-worked)
	g.mu.Lock()
	g.cancel() // the range is released
	g.mu.Unlock()
	// It is processed only after it is enqueued again.
	queue.Add(mine)
	require.Equal(t, mine, <-worked)
	g.mu.Lock()
	g.cancel()
	g.mu.Unlock()
	refused := func(times int) {
		t.Helper()
		require.Eventually(t, func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.refused[client.HashOf("others")] == times && g.begun[client.HashOf("mine")] == 0
		}, eventually, time.Millisecond)
	}
	refused(1)
	queue.Add(others)
	refused(2)
}

// TestGateNeedsHashes: keys must have a hash.
func TestGateNeedsHashes(t *testing.T) {
	config := Config[string]{Name: "c", Gate: &fakeGate{}}
	require.ErrorContains(t, New(config).Run(t.Context()), "set Hash")
	config.Hash = client.HashOf
	require.Equal(t, client.HashOf("x"), New(config).hash("x"))
	require.Equal(t, client.HashOf("x"), New(Config[logicalcluster.Name]{}).hash("x"))
}

type gained struct{ client.Ranges }

func (g gained) OnGain(f func(client.Ranges)) (remove func()) {
	f(g.Ranges)
	return func() {}
}

// TestGainedOfShards: newly assigned ranges of all shards are processed.
func TestGainedOfShards(t *testing.T) {
	static := map[string]*rest.Config{}
	for shard, cluster := range map[string]string{"blue": "c1", "green": "c2"} {
		server := clienttest.New(t, kinds.Scheme)
		server.Put(t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "a", Annotations: map[string]string{logicalcluster.AnnotationKey: cluster},
		}})
		static[shard] = server.ClientConfig()
	}
	multi, err := shards.New(shards.Static(static), kinds.ConfigMaps, shards.Options[*corev1.ConfigMap]{})
	require.NoError(t, err)
	background.Run(t.Context(), t, multi.Run)
	require.NoError(t, multi.WaitForSync(t.Context(), shards.All))
	all, err := client.PartOf(client.ByCluster, 0, 1)
	require.NoError(t, err)
	queue := delays{}
	remove, err := Gained(multi, gained{all}, func(obj *corev1.ConfigMap) []client.Key { return []client.Key{client.KeyOf(obj)} })(t.Context(), queue)
	require.NoError(t, err)
	remove()
	require.Equal(t, delays{{Cluster: "c1", Namespace: "default", Name: "a"}: 0, {Cluster: "c2", Namespace: "default", Name: "a"}: 0}, queue)
}
