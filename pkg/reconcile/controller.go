package reconcile

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

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

// ErrPanic is wrapped by the error that a panic in a Reconcile function is
// turned into.
var ErrPanic = errors.New("panic")

// Result says what a Reconcile function that succeeded wants next.
type Result struct {
	// RequeueAfter, if positive, is when the key is looked at again although
	// nothing may have changed.
	RequeueAfter time.Duration
	// Backoff asks for another look after a wait that doubles each time, as
	// after an error: for what takes its time and cannot be watched.
	Backoff bool
}

// Queue is where sources put the keys that need a look. A key that waits
// already is not added twice; a key that is being worked on is looked at again
// afterwards.
type Queue[K comparable] interface {
	// Add puts key into the queue now.
	Add(key K)
	// AddAfter puts key into the queue after a while.
	AddAfter(key K, after time.Duration)
	// Drop has key not be worked on, until it is added again: it stands for what has left this
	// process, and looks like what is deleted. Work that runs is not ended by it.
	Drop(key K)
}

// Source feeds a queue, typically from the events of an informer, until stop
// is called. When stop has returned, it adds nothing any more.
type Source[K comparable] func(ctx context.Context, queue Queue[K]) (stop func(), err error)

// Gate says what this process may work on now, where several divide the work, as a ring.Ring
// does.
type Gate interface {
	// Begin begins work on what has a hash. If it may not, ok is false. Otherwise the work has
	// to end soon after the context that it returns has, and end is called then.
	Begin(ctx context.Context, hash uint64) (work context.Context, end func(), ok bool)
}

// Config describes a controller over keys of type K.
type Config[K comparable] struct {
	// Name is the controller's name in logs and metrics.
	Name string
	// Reconcile brings what key stands for one step closer to what is wanted.
	// It is called for one key at a time never twice at once. After an error it
	// is called again with backoff.
	Reconcile func(ctx context.Context, key K) (Result, error)
	// Sources feed the queue while the controller runs.
	Sources []Source[K]
	// Workers is how many keys are worked on at a time; 4 by default. Keys that name
	// their logical cluster, as a client.Key does, are worked on in turns.
	Workers int
	// PerCluster is how many workers one logical cluster keeps busy at most; three
	// quarters of them by default.
	PerCluster int
	// MinBackoff and MaxBackoff bound the wait after an error, which doubles
	// with each one in a row; 5 ms and 30 s by default.
	MinBackoff, MaxBackoff time.Duration
	// Gate lets work on a key begin, and ends it; nil lets all begin. A key that it refuses is
	// dropped: whoever opens the gate enqueues it, as Gained does.
	Gate Gate
	// Hash returns by what the Gate knows a key; by default that is the hash of the logical
	// cluster that the key names.
	Hash func(key K) uint64
	// Timeout bounds the context of one Reconcile call; 30 s by default.
	Timeout time.Duration
}

// Controller works off a queue of keys. Make one with New.
type Controller[K comparable] struct {
	config Config[K]
}

// New returns the controller that config describes. It owns nothing until it
// runs.
func New[K comparable](config Config[K]) *Controller[K] {
	if config.Workers <= 0 {
		config.Workers = defaultWorkers
	}
	if config.PerCluster <= 0 {
		config.PerCluster = share(config.Workers)
	}
	if config.MinBackoff <= 0 {
		config.MinBackoff = defaultMinBackoff
	}
	if config.MaxBackoff <= 0 {
		config.MaxBackoff = defaultMaxBackoff
	}
	if config.Timeout <= 0 {
		config.Timeout = defaultTimeout
	}
	return &Controller[K]{config: config}
}

// Name returns the controller's name.
func (c *Controller[K]) Name() string { return c.config.Name }

// byCluster reports whether each key names its logical cluster.
func (c *Controller[K]) byCluster() bool {
	_, ok := clusterOf(*new(K))
	return ok
}

// Run feeds and works off the queue until ctx ends, and returns when all of its
// goroutines have. It fails only if a source cannot be started. A controller
// can run again after it has returned.
func (c *Controller[K]) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("controller", c.config.Name)
	ctx = klog.NewContext(ctx, logger)

	if c.config.Gate != nil && c.config.Hash == nil && !c.byCluster() {
		return fmt.Errorf("controller %s has a Gate, and keys of a type that names no logical cluster: set Hash", c.config.Name)
	}
	queue := newFeed[K](c.config.Name, c.config.PerCluster, c.config.MinBackoff, c.config.MaxBackoff)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer queue.ShutDown()

	for i := range c.config.Workers {
		workers.Go(func() {
			for c.next(ctx, i, queue) {
			}
		})
	}
	for _, source := range c.config.Sources {
		stop, err := source(ctx, queue)
		if err != nil {
			return fmt.Errorf("controller %s cannot watch what it needs: %w", c.config.Name, err)
		}
		defer stop()
	}
	logger.V(2).Info("Controller runs", "workers", c.config.Workers)
	<-ctx.Done()
	return nil
}

// next works on one key. It is false when the queue has been shut down.
func (c *Controller[K]) next(ctx context.Context, worker int, queue *feed[K]) bool {
	key, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.done(key)
	if ctx.Err() != nil {
		return true // drain what is left without working on it
	}
	if !queue.wanted(key) {
		queue.backoff.Forget(key)
		return true
	}

	if c.config.Gate != nil {
		work, end, ok := c.config.Gate.Begin(ctx, c.hash(key))
		if !ok {
			queue.backoff.Forget(key)
			return true
		}
		defer end()
		ctx = work
	}

	logger := klog.FromContext(ctx).WithValues("key", fmt.Sprint(key), "worker", worker)
	result, err := c.reconcile(klog.NewContext(ctx, logger), key)
	switch {
	case err != nil && ctx.Err() != nil:
		// Cut short by the end of the process, or the Gate; nothing to report.
		queue.backoff.Forget(key)
	case apierrors.IsConflict(err):
		// Somebody else wrote first: not a failure, look again at the new state.
		logger.V(4).Info("Changed meanwhile, looking again", "reason", err.Error())
		queue.failed(key)
	case err != nil:
		metricsFrom(ctx).failures.WithLabelValues(c.config.Name).Inc()
		logger.Error(err, "Reconciling failed, trying again", "attempt", queue.backoff.NumRequeues(key)+1)
		queue.failed(key)
	case result.Backoff:
		queue.failed(key)
	default:
		queue.backoff.Forget(key)
		if result.RequeueAfter > 0 {
			queue.again(key, result.RequeueAfter)
		}
	}
	return true
}

// hash returns by what the Gate knows a key.
func (c *Controller[K]) hash(key K) uint64 {
	if c.config.Hash != nil {
		return c.config.Hash(key)
	}
	cluster, _ := clusterOf(key)
	return client.HashOf(cluster.String())
}

// reconcile calls the Reconcile function and turns a panic into an error, so
// that one bad object does not stop the work on all others.
func (c *Controller[K]) reconcile(ctx context.Context, key K) (result Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			metricsFrom(ctx).panics.WithLabelValues(c.config.Name).Inc()
			klog.FromContext(ctx).Error(nil, "Reconciling panicked", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrPanic, r)
		}
	}()
	return c.config.Reconcile(ctx, key)
}
