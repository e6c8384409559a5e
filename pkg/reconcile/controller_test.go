package reconcile

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/test/background"
)

const eventually = 30 * time.Second

// start runs a controller until the test ends, or until stop is called.
func start(t *testing.T, r Runnable) (stop func()) {
	t.Helper()
	return background.Run(t.Context(), t, r.Run)
}

func keys[K comparable](ks ...K) Source[K] {
	return func(_ context.Context, queue Queue[K]) (func(), error) {
		for _, k := range ks {
			queue.Add(k)
		}
		return func() {}, nil
	}
}

func TestKeysAreReconciledInParallel(t *testing.T) {
	const workers = 3
	all := make(chan struct{})
	var busy atomic.Int32
	start(t, New(Config[string]{
		Name: "parallel", Workers: workers, Sources: []Source[string]{keys("a", "b", "c")},
		Reconcile: func(ctx context.Context, _ string) (Result, error) {
			if busy.Add(1) == workers {
				close(all)
			}
			select {
			case <-all:
				return Result{}, nil
			case <-ctx.Done():
				return Result{}, ctx.Err()
			}
		},
	}))
	select {
	case <-all:
	case <-time.After(eventually):
		t.Fatal("three workers never ran concurrently")
	}
}

func TestErrorsConflictsAndPanicsAreRetried(t *testing.T) {
	outcomes := map[string]func() error{
		"fails":     func() error { return errors.New("no") },
		"conflicts": func() error { return apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("changed")) },
		"panics":    func() error { panic("oh") },
	}
	ctx, registry := measured(t)
	attempts := map[string]*atomic.Int32{"fails": {}, "conflicts": {}, "panics": {}}
	background.Run(ctx, t, New(Config[string]{
		Name: "again", MaxBackoff: 10 * time.Millisecond,
		Sources: []Source[string]{keys("fails", "conflicts", "panics")},
		Reconcile: func(_ context.Context, key string) (Result, error) {
			if attempts[key].Add(1) <= 5 {
				return Result{}, outcomes[key]()
			}
			return Result{}, nil
		},
	}).Run)
	for k, n := range attempts {
		require.Eventually(t, func() bool { return n.Load() == 6 }, eventually, time.Millisecond, k)
	}
	require.InDelta(t, 10, metric(t, registry, "shardplane_reconcile_failures_total"), 0, "conflicts must not count as failures")
	require.InDelta(t, 5, metric(t, registry, "shardplane_reconcile_panics_total"), 0)
}

func TestRequeueAfter(t *testing.T) {
	var calls atomic.Int32
	start(t, New(Config[string]{
		Name: "later", Sources: []Source[string]{keys("a")},
		Reconcile: func(context.Context, string) (Result, error) {
			if calls.Add(1) < 3 {
				return Result{RequeueAfter: time.Millisecond}, nil
			}
			return Result{}, nil
		},
	}))
	require.Eventually(t, func() bool { return calls.Load() == 3 }, eventually, time.Millisecond)
}

func TestBackoffWithoutFailure(t *testing.T) {
	ctx, registry := measured(t)
	var calls atomic.Int32
	background.Run(ctx, t, New(Config[string]{
		Name: "waiting", Sources: []Source[string]{keys("a")},
		Reconcile: func(context.Context, string) (Result, error) { return Result{Backoff: calls.Add(1) < 4}, nil },
	}).Run)
	require.Eventually(t, func() bool { return calls.Load() == 4 }, eventually, time.Millisecond)
	require.InDelta(t, 0, metric(t, registry, "shardplane_reconcile_failures_total"), 0)
}

func TestStopWaitsForWorkersAndDropsTheQueue(t *testing.T) {
	var stopped, ended, calls atomic.Int32
	began := make(chan struct{})
	stop := start(t, New(Config[string]{
		Name: "stop", Workers: 1,
		Sources: []Source[string]{keys("a", "b", "c"), func(context.Context, Queue[string]) (func(), error) {
			return func() { stopped.Add(1) }, nil
		}},
		Reconcile: func(ctx context.Context, _ string) (Result, error) {
			calls.Add(1)
			close(began)
			<-ctx.Done()
			ended.Add(1)
			return Result{}, ctx.Err()
		},
	}))
	<-began
	stop()
	require.Equal(t, int32(1), stopped.Load())
	require.Equal(t, int32(1), ended.Load())
	require.Equal(t, int32(1), calls.Load(), "queued keys must not be processed after the controller has stopped")
}

func TestReconcileIsBoundedInTime(t *testing.T) {
	ended := make(chan error, 1)
	start(t, New(Config[string]{
		Name: "bounded", Sources: []Source[string]{keys("a")}, Timeout: time.Millisecond,
		Reconcile: func(ctx context.Context, _ string) (Result, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return Result{}, nil
		},
	}))
	require.ErrorIs(t, <-ended, context.DeadlineExceeded)
}

func TestFailingSourceStopsOthers(t *testing.T) {
	var stopped atomic.Int32
	c := New(Config[string]{
		Name: "broken",
		Sources: []Source[string]{
			func(context.Context, Queue[string]) (func(), error) { return func() { stopped.Add(1) }, nil },
			func(context.Context, Queue[string]) (func(), error) { return nil, errors.New("no such thing") },
		},
		Reconcile: func(context.Context, string) (Result, error) { return Result{}, nil },
	})
	require.ErrorContains(t, c.Run(t.Context()), "no such thing")
	require.Equal(t, int32(1), stopped.Load())
}

func measured(t *testing.T) (context.Context, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	return WithMetrics(t.Context(), registry), registry
}

func metric(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			require.Len(t, family.GetMetric(), 1)
			return family.GetMetric()[0].GetCounter().GetValue() + family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}
