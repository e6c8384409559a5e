package reconcile

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const eventually = 30 * time.Second

// start runs a controller until the test ends, or until stop is called.
func start(t *testing.T, r Runnable) (stop func()) {
	t.Helper()
	return startWith(t.Context(), t, r)
}

func startWith(parent context.Context, t *testing.T, r Runnable) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(parent)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-done)
		})
	}
	t.Cleanup(stop)
	return stop
}

func keys(ks ...string) Source[string] {
	return func(_ context.Context, queue Queue[string]) (func(), error) {
		for _, k := range ks {
			queue.Add(k)
		}
		return func() {}, nil
	}
}

func TestEveryKeyIsWorkedOnInParallel(t *testing.T) {
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
	require.Eventually(t, func() bool {
		select {
		case <-all:
			return true
		default:
			return false
		}
	}, eventually, time.Millisecond, "three workers never worked at once")
}

func TestErrorsConflictsAndPanicsAreTriedAgain(t *testing.T) {
	outcomes := map[string]func(attempt int32) error{
		"fails":     func(int32) error { return errors.New("no") },
		"conflicts": func(int32) error { return apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("changed")) },
		"panics":    func(int32) error { panic("oh") },
	}
	ctx, registry := measured(t)
	var attempts sync.Map
	ks := make([]string, 0, len(outcomes))
	for k := range outcomes {
		attempts.Store(k, new(atomic.Int32))
		ks = append(ks, k)
	}
	startWith(ctx, t, New(Config[string]{
		Name: "again", Sources: []Source[string]{keys(ks...)}, MaxBackoff: 10 * time.Millisecond,
		Reconcile: func(_ context.Context, key string) (Result, error) {
			n, _ := attempts.Load(key)
			if attempt := n.(*atomic.Int32).Add(1); attempt <= 5 {
				return Result{}, outcomes[key](attempt)
			}
			return Result{}, nil
		},
	}))
	for _, k := range ks {
		n, _ := attempts.Load(k)
		require.Eventually(t, func() bool { return n.(*atomic.Int32).Load() == 6 }, eventually, time.Millisecond, k)
	}
	require.InDelta(t, 10, metric(t, registry, "shardplane_reconcile_failures_total"), 0, "conflicts are not failures")
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
	startWith(ctx, t, New(Config[string]{
		Name: "waiting", Sources: []Source[string]{keys("a")},
		Reconcile: func(context.Context, string) (Result, error) { return Result{Backoff: calls.Add(1) < 4}, nil },
	}))
	require.Eventually(t, func() bool { return calls.Load() == 4 }, eventually, time.Millisecond)
	require.InDelta(t, 0, metric(t, registry, "shardplane_reconcile_failures_total"), 0)
}

func TestStoppingWaitsForWorkersAndDropsWhatIsQueued(t *testing.T) {
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
	require.Equal(t, int32(1), calls.Load(), "queued keys are not worked on after the end")
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

func TestSourceThatFailsUnwindsTheOthers(t *testing.T) {
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
