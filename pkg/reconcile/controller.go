package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // queues report their metrics
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	defaultWorkers    = 4
	defaultMinBackoff = 5 * time.Millisecond
	defaultMaxBackoff = 30 * time.Second
	defaultTimeout    = 30 * time.Second
)

// ErrPanic is wrapped by the errors that recovered panics of Reconcile functions are converted to.
var ErrPanic = errors.New("panic")

// Result is the result of a successful Reconcile call.
type Result struct {
	// RequeueAfter, if positive, is the time after which the key is reconciled again.
	RequeueAfter time.Duration
	// Backoff requeues the key with exponential backoff, for conditions that cannot be watched.
	Backoff bool
}

// Queue accepts keys from sources. A queued key is not added twice. One that is being processed is processed again.
type Queue[K comparable] interface {
	// Add adds a key immediately.
	Add(key K)
	// AddAfter adds a key after a delay.
	AddAfter(key K, after time.Duration)
	// Drop discards a key until it is added again. It does not interrupt a Reconcile call.
	Drop(key K)
}

// Source feeds a queue, typically from informer events, until stop is called. It must not add keys after stop returned.
type Source[K comparable] func(ctx context.Context, queue Queue[K]) (stop func(), err error)

// Gate restricts a process to its part of the keys if several processes share the work, e.g. a ring.Ring.
type Gate interface {
	// Begin starts work on a key with the given hash, unless ok is false. The work must stop soon after the returned
	// context is done, and end must be called.
	Begin(ctx context.Context, hash uint64) (work context.Context, end func(), ok bool)
}

// Config describes a controller over keys of type K.
type Config[K comparable] struct {
	// Name is used in logs and metrics.
	Name string
	// Reconcile is never called concurrently for the same key, and is retried with backoff after an error.
	Reconcile func(ctx context.Context, key K) (Result, error)
	// Sources feed the queue while the controller is running.
	Sources []Source[K]
	// Workers is the number of keys that are processed concurrently; the default is 4. If keys identify a logical
	// cluster, as client.Key does, logical clusters are served in round-robin order.
	Workers int
	// PerCluster limits the workers of one logical cluster; the default is three quarters of Workers.
	PerCluster int
	// MinBackoff and MaxBackoff bound the exponential backoff after errors; the defaults are 5 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// Gate is optional. Keys that it rejects are dropped; a source such as Gained must add them when it accepts them.
	Gate Gate
	// Hash returns the hash of a key for Gate; the default is the hash of the key's logical cluster.
	Hash func(key K) uint64
	// Timeout limits the context of one Reconcile call; the default is 30 s.
	Timeout time.Duration
}

// Controller processes the keys of a queue.
type Controller[K comparable] struct {
	config Config[K]
}

// New returns a Controller, which is inactive until Run is called.
func New[K comparable](config Config[K]) *Controller[K] {
	config.Workers = cmp.Or(max(config.Workers, 0), defaultWorkers)
	config.PerCluster = cmp.Or(max(config.PerCluster, 0), share(config.Workers))
	config.MinBackoff = cmp.Or(max(config.MinBackoff, 0), defaultMinBackoff)
	config.MaxBackoff = cmp.Or(max(config.MaxBackoff, 0), defaultMaxBackoff)
	config.Timeout = cmp.Or(max(config.Timeout, 0), defaultTimeout)
	return &Controller[K]{config: config}
}

// Name returns the controller's name.
func (c *Controller[K]) Name() string { return c.config.Name }

// Run processes keys until ctx is done, and returns after all of its goroutines have exited. It fails only if a source
// cannot be started. It may be called again.
func (c *Controller[K]) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("controller", c.config.Name)
	ctx = klog.NewContext(ctx, logger)

	if c.config.Gate != nil && c.config.Hash == nil {
		if _, clustered := clusterOf(*new(K)); !clustered {
			return fmt.Errorf("controller %s has a Gate, but its keys do not identify a logical cluster: set Hash", c.config.Name)
		}
	}
	queue := newKeyQueue[K](c.config.Name, c.config.PerCluster, c.config.MinBackoff, c.config.MaxBackoff)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer queue.ShutDown()

	// Goroutines are started for keys, not for workers, because most workers of most controllers are idle.
	running := make(chan struct{}, c.config.Workers)
	workers.Go(func() {
		for {
			running <- struct{}{}
			key, shutdown := queue.Get()
			if shutdown {
				return
			}
			workers.Go(func() {
				c.process(ctx, queue, key)
				<-running
			})
		}
	})
	for _, source := range c.config.Sources {
		stop, err := source(ctx, queue)
		if err != nil {
			return fmt.Errorf("controller %s cannot start a source: %w", c.config.Name, err)
		}
		defer stop()
	}
	logger.V(2).Info("Started controller", "workers", c.config.Workers)
	<-ctx.Done()
	return nil
}

func (c *Controller[K]) process(ctx context.Context, queue *keyQueue[K], key K) {
	defer queue.done(key)
	if ctx.Err() != nil {
		return // drain the queue
	}
	if !queue.take(key) {
		queue.backoff.Forget(key)
		return
	}

	if c.config.Gate != nil {
		work, end, ok := c.config.Gate.Begin(ctx, c.hash(key))
		if !ok {
			queue.backoff.Forget(key)
			return
		}
		defer end()
		ctx = work
	}

	logger := klog.FromContext(ctx).WithValues("key", fmt.Sprint(key))
	result, err := c.reconcile(klog.NewContext(ctx, logger), key)
	switch {
	case err != nil && ctx.Err() != nil:
		// The controller is stopping or the Gate has closed: this is not a failure of the key.
		queue.backoff.Forget(key)
	case apierrors.IsConflict(err):
		// A conflict is expected under concurrent writes: retry with the new state.
		logger.V(4).Info("Object was modified concurrently, retrying", "reason", err.Error())
		queue.failed(key)
	case err != nil:
		metricsFrom(ctx).failures.WithLabelValues(c.config.Name).Inc()
		logger.Error(err, "Failed to reconcile, retrying", "attempt", queue.backoff.NumRequeues(key)+1)
		queue.failed(key)
	case result.Backoff:
		queue.failed(key)
	default:
		queue.backoff.Forget(key)
		if result.RequeueAfter > 0 {
			queue.again(key, result.RequeueAfter)
		}
	}
}

func (c *Controller[K]) hash(key K) uint64 {
	if c.config.Hash != nil {
		return c.config.Hash(key)
	}
	cluster, _ := clusterOf(key)
	return client.HashOf(cluster.String())
}

// reconcile converts a panic of the Reconcile function into an error, so that one object cannot stop the controller.
func (c *Controller[K]) reconcile(ctx context.Context, key K) (result Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			metricsFrom(ctx).panics.WithLabelValues(c.config.Name).Inc()
			klog.FromContext(ctx).Error(nil, "Recovered from a panic in Reconcile", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrPanic, r)
		}
	}()
	return c.config.Reconcile(ctx, key)
}

type metrics struct {
	failures, panics *prometheus.CounterVec
	running          *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	factory := promauto.With(registerer)
	return metrics{
		failures: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "shardplane_reconcile_failures_total",
			Help: "[ALPHA] Failed reconciliations, which are retried, by controller. Conflicts are not counted.",
		}, []string{"controller"}),
		panics: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "shardplane_reconcile_panics_total",
			Help: "[ALPHA] Reconciliations that panicked, which are retried, by controller.",
		}, []string{"controller"}),
		running: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "shardplane_reconcile_controllers",
			Help: "[ALPHA] 1 for each controller that is running in this process, by placement: leader or every replica.",
		}, []string{"controller", "placement"}),
	}
}

type metricsKey struct{}

// WithMetrics returns a context for Run of controllers that registers their metrics with registerer. It panics if the
// metrics are already registered. Without it, metrics are not exposed.
func WithMetrics(ctx context.Context, registerer prometheus.Registerer) context.Context {
	return context.WithValue(ctx, metricsKey{}, newMetrics(registerer))
}

func metricsFrom(ctx context.Context) metrics {
	m, ok := ctx.Value(metricsKey{}).(metrics)
	if !ok {
		return newMetrics(nil)
	}
	return m
}
