package reconcile

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// fakeGate lets work on some hashes begin.
type fakeGate struct {
	mu      sync.Mutex
	open    map[uint64]bool
	begun   map[uint64]int
	refused map[uint64]int
	cancel  context.CancelFunc
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

// TestGate: what a gate refuses is dropped, and what it ends is not tried again.
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
				t.Errorf("%s: %d have begun", key, begun)
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
	g.cancel() // the range goes
	g.mu.Unlock()
	// It is tried when somebody enqueues it, and not before.
	queue.Add(mine)
	require.Equal(t, mine, <-worked)
	g.mu.Lock()
	g.cancel()
	require.Equal(t, 1, g.refused[client.HashOf("others")])
	g.mu.Unlock()
	queue.Add(others)
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.refused[client.HashOf("others")] == 2 && g.begun[client.HashOf("mine")] == 0
	}, eventually, time.Millisecond)
}

// TestGateNeedsHashes: a gate knows hashes only.
func TestGateNeedsHashes(t *testing.T) {
	config := Config[string]{Name: "c", Gate: &fakeGate{}}
	require.ErrorContains(t, New(config).Run(t.Context()), "set Hash")
	config.Hash = client.HashOf
	require.Equal(t, client.HashOf("x"), New(config).hash("x"))
	require.Equal(t, client.HashOf("x"), New(Config[logicalcluster.Name]{}).hash("x"))
}
