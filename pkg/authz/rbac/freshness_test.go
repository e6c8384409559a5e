package rbac

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
)

// waiting starts a wait and returns a channel that is closed at its end.
func waiting(ctx context.Context, f *freshness, name logicalcluster.Name) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.wait(ctx, name)
	}()
	return done
}

func requireWaits(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
		t.Fatal("the wait ended too early")
	case <-time.After(20 * time.Millisecond):
	}
}

func requireEnds(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the wait does not end")
	}
}

// later is the time of a write, such that freshnessTimeout does not expire meanwhile.
func later() time.Time { return time.Now().Add(time.Hour) }

func TestFreshness(t *testing.T) {
	f := &freshness{}
	f.wait(t.Context(), "a") // no writes

	f.wrote("a", "rolebindings", "10", later())
	a, b := waiting(t.Context(), f, "a"), waiting(t.Context(), f, "b")
	requireEnds(t, b)
	requireWaits(t, a)
	f.saw(resourceRoles, 11)
	f.saw(resourceRoleBindings, 9)
	requireWaits(t, a)
	f.wrote("a", "roles", "12", later()) // not the write that the first one waits for
	f.saw(resourceRoleBindings, 10)
	requireEnds(t, a)
	a = waiting(t.Context(), f, "a")
	requireWaits(t, a)
	f.saw(resourceRoles, 15) // of another logical cluster
	requireEnds(t, a)
	require.Zero(t, f.count.Load())

	f.wrote("a", "roles", "15", later()) // seen before it was recorded
	require.Zero(t, f.count.Load())
	f.wrote("a", "pods", "100", later())
	f.wrote("a", "roles", "nonsense", later())
	require.Zero(t, f.count.Load())
}

func TestPendingIn(t *testing.T) {
	f := &freshness{}
	require.False(t, f.pendingIn("a", later()))
	f.wrote("a", "rolebindings", "10", later())
	require.True(t, f.pendingIn("a", later()))
	require.False(t, f.pendingIn("b", later()))
	require.False(t, f.pendingIn("a", later().Add(2*freshnessTimeout)), "expired writes must not be pending")
	f.saw(resourceRoleBindings, 10)
	require.False(t, f.pendingIn("a", later()))
}

func TestFreshnessEnds(t *testing.T) {
	f := &freshness{}
	f.wrote("a", "roles", "10", time.Now().Add(-2*freshnessTimeout))
	requireEnds(t, waiting(t.Context(), f, "a"))

	ctx, cancel := context.WithCancel(t.Context())
	f.wrote("a", "roles", "10", later())
	a := waiting(ctx, f, "a")
	requireWaits(t, a)
	cancel()
	requireEnds(t, a)
}

func TestFreshnessIsBounded(t *testing.T) {
	f := &freshness{}
	now := later()
	for n := range 2 * maxPending {
		f.wrote(logicalcluster.Name(fmt.Sprint(n)), "roles", "10", now)
	}
	require.Equal(t, maxPending, len(f.pending)) //nolint:testifylint // a failure must not print them all
	f.saw(resourceRoles, 10)
	require.Empty(t, f.pending)
	for n := range maxPending {
		f.wrote(logicalcluster.Name(fmt.Sprint(n)), "roles", "20", now.Add(-2*freshnessTimeout))
	}
	f.wrote("new", "roles", "20", now)
	require.Equal(t, 1, len(f.pending), "expired writes must be removed") //nolint:testifylint // as above
}

func TestFreshnessConcurrently(t *testing.T) {
	f := &freshness{}
	var running sync.WaitGroup
	for n := range 4 {
		running.Go(func() {
			name := logicalcluster.Name(fmt.Sprint(n))
			for version := 1; version <= 200; version++ {
				f.wrote(name, "roles", fmt.Sprint(version), later())
				running.Go(func() { f.saw(resourceRoles, uint64(version)) })
				f.wait(t.Context(), name)
				if f.seen[resourceRoles].Load() < uint64(version) {
					t.Errorf("the wait for version %d ended too early", version)
				}
			}
		})
	}
	running.Wait()
	require.Zero(t, f.count.Load())
}
