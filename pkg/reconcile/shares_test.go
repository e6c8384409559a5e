package reconcile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

func clusterKeys(cluster logicalcluster.Name, n int) []client.Key {
	keys := make([]client.Key, n)
	for i := range keys {
		keys[i] = client.Key{Cluster: cluster, Name: fmt.Sprint(i)}
	}
	return keys
}

// TestOneClusterLeavesWorkersToOthers: slow keys of one logical cluster do not block others.
func TestOneClusterLeavesWorkersToOthers(t *testing.T) {
	var mu sync.Mutex
	running, most, done := 0, 0, 0
	others, held := make(chan struct{}), make(chan struct{})
	all := slices.Concat(clusterKeys("slow", 50), clusterKeys("quick", 20), clusterKeys("other", 20))
	start(t, New(Config[client.Key]{
		Name: "shares", Workers: 4, Sources: []Source[client.Key]{keys(all...)},
		Reconcile: func(ctx context.Context, key client.Key) (Result, error) {
			mu.Lock()
			defer mu.Unlock()
			if key.Cluster != "slow" {
				if done++; done == 40 {
					mu.Unlock()
					defer mu.Lock()
					select {
					case <-held:
						close(others)
					case <-ctx.Done():
					}
				}
				return Result{}, nil
			}
			if running++; running == 3 && most < 3 {
				close(held)
			}
			most = max(most, running)
			mu.Unlock()
			select {
			case <-others:
			case <-ctx.Done():
			}
			mu.Lock()
			running--
			return Result{}, ctx.Err()
		},
	}))
	select {
	case <-others:
	case <-time.After(eventually):
		t.Fatal("the keys of one logical cluster block all workers")
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 3, most, "a logical cluster must get three of four workers")
}

// TestClustersTakeTurns: one worker alternates between logical clusters.
func TestClustersTakeTurns(t *testing.T) {
	order := newShares[client.Key](share(1))
	for _, key := range append(clusterKeys("many", 100), clusterKeys("one", 1)...) {
		order.Push(key)
	}
	var got []logicalcluster.Name
	for range 3 {
		require.Positive(t, order.Len())
		key := order.Pop()
		got = append(got, key.Cluster)
		order.Done(key)
	}
	require.Equal(t, []logicalcluster.Name{"many", "one", "many"}, got)
}

// TestOtherKeysAreNotBounded: keys without a logical cluster use all workers in FIFO order.
func TestOtherKeysAreNotBounded(t *testing.T) {
	order := newShares[string](share(4))
	for n := range 10 {
		order.Push(fmt.Sprint(n))
	}
	for n := range 10 {
		require.Positive(t, order.Len())
		require.Equal(t, fmt.Sprint(n), order.Pop())
	}
	require.Zero(t, order.Len())
	for n := range 10 {
		order.Done(fmt.Sprint(n))
	}
	require.Empty(t, order.clusters, "processed keys must be removed")
}

// TestEachKeyIsProcessedAfterItsLastAdd: each key is processed after it was added last.
func TestEachKeyIsProcessedAfterItsLastAdd(t *testing.T) {
	var mu sync.Mutex
	wanted, seen := map[client.Key]int{}, map[client.Key]int{}
	added := make(chan Queue[client.Key], 1)
	start(t, New(Config[client.Key]{
		Name: "forgets", Workers: 3,
		Sources: []Source[client.Key]{func(_ context.Context, queue Queue[client.Key]) (func(), error) {
			added <- queue
			return func() {}, nil
		}},
		Reconcile: func(_ context.Context, key client.Key) (Result, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[key] = wanted[key]
			return Result{Backoff: rand.IntN(20) == 0}, nil
		},
	}))
	queue := <-added
	var adders sync.WaitGroup
	for range 4 {
		adders.Go(func() {
			for range 2000 {
				key := client.Key{Cluster: logicalcluster.Name(fmt.Sprint(rand.IntN(5))), Name: fmt.Sprint(rand.IntN(30))}
				mu.Lock()
				wanted[key]++
				mu.Unlock()
				queue.Add(key)
			}
		})
	}
	adders.Wait()
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		for key, n := range wanted {
			if seen[key] != n {
				return false
			}
		}
		return true
	}, eventually, time.Millisecond)
}
