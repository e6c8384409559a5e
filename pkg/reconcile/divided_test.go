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

// divider lets work begin in some logical clusters.
type divider struct {
	telling sync.Mutex // one call of what is told comes after the other

	mu    sync.Mutex
	has   map[uint64]bool
	gains []func(client.Ranges)
}

func (d *divider) Begin(ctx context.Context, hash uint64) (context.Context, func(), bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return ctx, func() {}, d.has[hash]
}

func (d *divider) OnGain(f func(client.Ranges)) (remove func()) {
	d.telling.Lock()
	defer d.telling.Unlock()
	d.mu.Lock()
	d.gains = append(d.gains, f)
	d.mu.Unlock()
	f(client.Ranges{})
	return func() {}
}

func (d *divider) gain(clusters ...logicalcluster.Name) {
	d.mu.Lock()
	for _, name := range clusters {
		d.has[client.HashOf(name.String())] = true
	}
	gains := d.gains
	d.mu.Unlock()
	d.telling.Lock()
	defer d.telling.Unlock()
	for _, f := range gains {
		f(client.Ranges{})
	}
}

// TestDivided: what a replica refused it works on when it comes, and a source is never without.
func TestDivided(t *testing.T) {
	var (
		mu       sync.Mutex
		worked   = map[client.Key]int{}
		watching int
	)
	catalogue := []Descriptor[string]{{Name: "a", Placement: Divided, New: func(string) (Made, error) {
		return Made{Runnable: New(Config[client.Key]{
			Name: "a",
			Sources: []Source[client.Key]{func(_ context.Context, queue Queue[client.Key]) (func(), error) {
				mu.Lock()
				defer mu.Unlock()
				watching++
				for _, name := range []logicalcluster.Name{"one", "two", "three"} {
					queue.Add(client.Key{Cluster: name, Name: "x"})
				}
				return func() {
					mu.Lock()
					defer mu.Unlock()
					if watching--; watching == 0 && len(worked) < 2 {
						t.Error("for a moment nothing was watched")
					}
				}, nil
			}},
			Reconcile: func(_ context.Context, key client.Key) (Result, error) {
				mu.Lock()
				defer mu.Unlock()
				worked[key]++
				return Result{}, nil
			},
		})}, nil
	}}}
	led, err := NewManager(catalogue, "", OnLeader, Dividable, OnEveryReplica)
	require.NoError(t, err)
	require.Empty(t, led.Names())
	d := &divider{has: map[uint64]bool{}}
	group, err := NewDivided(catalogue, "", d)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- group.Run(ctx) }()
	had := func(names ...logicalcluster.Name) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, name := range names {
				if worked[client.Key{Cluster: name, Name: "x"}] == 0 {
					return false
				}
			}
			return len(worked) == len(names)
		}
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return watching == 1
	}, time.Minute, time.Millisecond)
	require.True(t, had()())
	d.gain("one")
	require.Eventually(t, had("one"), time.Minute, time.Millisecond)
	d.gain("two")
	require.Eventually(t, had("one", "two"), time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	require.Zero(t, watching)

	// The only replica has all.
	group, err = NewDivided(catalogue, "", nil)
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	go func() { done <- group.Run(ctx) }()
	require.Eventually(t, had("one", "two", "three"), time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}
