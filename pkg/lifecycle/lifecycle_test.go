package lifecycle_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/test/bubble"
)

// journal records the events of a test, in order.
type journal struct {
	mu      sync.Mutex
	entries []string
}

func (j *journal) add(entry string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries
}

// part runs until it is stopped or receives an error from fail.
func (j *journal) part(name string, fail <-chan error) lifecycle.Part {
	return lifecycle.Part{Name: name, Run: func(ctx context.Context) error {
		j.add("start " + name)
		select {
		case <-ctx.Done():
			j.add("stop " + name)
			return nil
		case err := <-fail:
			return err
		}
	}}
}

func TestStopsInReverseOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := &journal{}
		g := lifecycle.NewGroup("part")
		g.Opened(func() { j.add("close etcd") })
		g.Opened(func() { j.add("close storage") })
		g.Add(j.part("a", nil), j.part("b", nil), j.part("c", nil))

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		bubble.Wait()
		require.ElementsMatch(t, []string{"start a", "start b", "start c"}, j.all())
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"stop c", "stop b", "stop a", "close storage", "close etcd"}, j.all()[3:])
		g.Close()
		require.Len(t, j.all(), 8, "closed once")
	})
}

func TestWaitsForNeedsSeparately(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := &journal{}
		there := make(chan struct{})
		waiting := j.part("a", nil)
		waiting.Needs = func(ctx context.Context) error {
			select {
			case <-there:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		g := lifecycle.NewGroup("part")
		g.Add(waiting, j.part("b", nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		bubble.Wait()
		require.Equal(t, []string{"start b"}, j.all())
		close(there)
		bubble.Wait()
		require.Equal(t, []string{"start b", "start a"}, j.all())
		cancel()
		require.NoError(t, <-done)
	})
}

// TestPartsNeedEachOther verifies that a part may need a later one, and that parts stop in the order of the group
// instead of the order in which they started.
func TestPartsNeedEachOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := &journal{}
		served := make(chan struct{})
		informers, api := j.part("informers", nil), j.part("api", nil)
		informers.Needs = func(context.Context) error {
			<-served
			return nil
		}
		run := api.Run
		api.Run = func(ctx context.Context) error {
			close(served)
			return run(ctx)
		}
		never := lifecycle.Part{Name: "never", Needs: func(ctx context.Context) error {
			<-ctx.Done()
			j.add("stop never")
			return ctx.Err()
		}}
		g := lifecycle.NewGroup("part")
		g.Opened(func() { j.add("close") })
		g.Add(informers, never, api)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		bubble.Wait()
		require.ElementsMatch(t, []string{"start api", "start informers"}, j.all())
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"stop api", "stop never", "stop informers", "close"}, j.all()[2:])
	})
}

func TestStopsWhileAPartWaits(t *testing.T) {
	j := &journal{}
	waiting := j.part("a", nil)
	waiting.Needs = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	g := lifecycle.NewGroup("part")
	g.Add(waiting)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, g.Run(ctx))
	require.Empty(t, j.all())
}

func TestStopsAllWhenOneFails(t *testing.T) {
	broken := errors.New("broken")
	unmet := lifecycle.Part{Name: "b", Needs: func(context.Context) error { return broken }}
	j := &journal{}
	fail, end := make(chan error, 1), make(chan error, 1)
	fail <- broken
	end <- nil
	for name, tc := range map[string]struct {
		part lifecycle.Part
		want error
	}{
		"error":    {j.part("b", fail), broken},
		"no error": {j.part("b", end), lifecycle.ErrEnded},
		"needs":    {unmet, broken},
	} {
		t.Run(name, func(t *testing.T) {
			closed := false
			g := lifecycle.NewGroup("controller")
			g.Opened(func() { closed = true })
			g.Add(j.part("a", nil), tc.part)
			err := g.Run(t.Context())
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, "controller b: ")
			require.True(t, closed)
		})
	}
}
