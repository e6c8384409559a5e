package garbagecollector

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/storage"
)

// Name is the name of the controller, and Username the user that deletes objects.
const (
	Name     = "garbagecollector"
	Username = "system:serviceaccount:kube-system:generic-garbage-collector"
)

const (
	// perCluster limits the workers of one logical cluster.
	perCluster = workers / 4
	// timeout limits the work on one object, e.g. orphaning its dependents. A retry continues where it stopped.
	timeout = 5 * time.Minute
	// catchUpTimeout limits the wait for the watch to deliver all writes.
	catchUpTimeout = 10 * time.Second
	// retryInterval is the delay before the start is retried.
	retryInterval = 100 * time.Millisecond
	// errorInterval is the time after which a failing start is logged as an error, and the interval of these errors.
	errorInterval = time.Minute
	// maxKeys and maxNamespaces limit the search for an owner in other namespaces. The result is only reported.
	maxKeys, maxNamespaces = 1000, 20
)

// requeueDelays are the delays at which parked items are requeued after the served APIs have changed, because components
// observe such a change at different times.
var requeueDelays = []time.Duration{0, time.Second, 10 * time.Second}

// Kinds gives access to the APIs that logical clusters serve.
type Kinds interface {
	// KindOf returns the resource of a kind; false if it is not served.
	KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (storage.Kind, bool, error)
	// Served returns the resource with a key prefix, in any served version.
	Served(ctx context.Context, cluster logicalcluster.Name, prefix, identity string) (storage.Kind, bool, error)
}

// Config configures the controller.
type Config struct {
	// Local reaches the shard as the system user, and Deleting as Username with the permissions of the system.
	Local, Deleting *client.Factory
	Store           Store
	Kinds           Kinds
	// InitialDelay is the delay before garbage is deleted that existed before the first collector.
	InitialDelay time.Duration
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Controller collects garbage.
type Controller struct {
	config    Config
	collector *collector
	feed      *feed
	queue     *reconcile.Controller[Item]
	// newData is set if the shard was empty when the collector started.
	newData bool
}

// NewGarbageCollector returns the controller.
func NewGarbageCollector(config Config) *Controller {
	c := &Controller{config: config, collector: newCollector(config.Metrics)}
	c.feed = newFeed(config.Store, c.collector.graph, &c.collector.parked)
	c.collector.backend = &shard{
		Kinds: config.Kinds, writer: &writer{deleting: config.Deleting, local: config.Local}, feed: c.feed,
		caughtUp: newTogether(c.feed.catchUp),
	}
	c.queue = reconcile.New(reconcile.Config[Item]{
		Name: Name, Reconcile: c.collector.collect, Workers: workers, PerCluster: perCluster, MinBackoff: minBackoff,
		MaxBackoff: maxBackoff, Timeout: timeout, Sources: []reconcile.Source[Item]{c.source},
	})
	return c
}

// Name returns the controller's name.
func (*Controller) Name() string { return Name }

// Run collects garbage until ctx is done, and returns after all of its goroutines have exited.
func (c *Controller) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("controller", Name)
	ctx = klog.NewContext(ctx, logger)
	following, unfollow := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer unfollow()
	running.Go(func() { c.feed.run(following) })
	nextError := time.Now().Add(errorInterval)
	for {
		err := c.feed.catchUp(ctx)
		if err == nil {
			err = c.begin(ctx)
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil // stopped
		}
		if now := time.Now(); now.After(nextError) {
			logger.Error(err, "Failed to start garbage collection, retrying")
			nextError = now.Add(errorInterval)
		} else {
			logger.V(2).Info("Failed to start garbage collection, retrying", "err", err)
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return nil
		}
	}
	return c.queue.Run(ctx)
}

// source enqueues items from the graph and parked items.
func (c *Controller) source(ctx context.Context, queue reconcile.Queue[Item]) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-c.collector.graph.wake:
				c.enqueue(queue)
			case <-c.feed.served:
				c.unpark(queue)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}, nil
}

func (c *Controller) enqueue(queue reconcile.Queue[Item]) {
	graph := c.collector.graph
	todo := graph.take()
	for _, item := range todo.items {
		queue.Add(item)
	}
	for _, o := range todo.owners {
		for _, d := range graph.dependentsOf(o) {
			queue.Add(d.item)
		}
	}
	c.collector.metrics.references.Set(float64(graph.size()))
	c.collector.metrics.parked.Set(float64(c.collector.parked.len()))
}

func (c *Controller) unpark(queue reconcile.Queue[Item]) {
	for cluster := range c.feed.takeRedefined() {
		for _, item := range c.collector.parked.take(cluster) {
			for _, after := range requeueDelays {
				queue.AddAfter(item, after)
			}
		}
	}
	c.collector.metrics.parked.Set(float64(c.collector.parked.len()))
}

type shard struct {
	Kinds
	*writer

	feed     *feed
	caughtUp *together
}

var _ backend = &shard{}

func (s *shard) get(ctx context.Context, item Item) (object, error) { return s.feed.get(ctx, item) }

func (s *shard) read(ctx context.Context, item Item) (object, error) {
	h, err := s.feed.store.ReadHeader(ctx, string(item))
	return objectOf(h), err
}

// catchUp implements backend. Concurrent calls share one wait.
func (s *shard) catchUp(ctx context.Context, item Item, o object) error {
	version, err := strconv.ParseUint(o.version, 10, 64)
	if err != nil {
		return fmt.Errorf("resource version of %s: %w", o.uid, err)
	}
	if s.feed.caughtUp.Load() < version {
		ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
		defer cancel()
		if err := s.caughtUp.do(ctx); err != nil {
			return err
		}
	}
	return s.feed.allReadable(item.LogicalCluster())
}

func (s *shard) inOtherNamespace(ctx context.Context, owner Item, uid types.UID) bool {
	place := owner.place()
	if place.Namespace == metav1.NamespaceNone {
		return false
	}
	keys, err := s.feed.store.Keys(ctx, storage.Key(owner.prefix(), place.Identity, place.Cluster, "", ""), maxKeys)
	if err != nil {
		return false
	}
	tried := 0
	for _, key := range keys {
		if Item(key).place().Name != place.Name || tried == maxNamespaces {
			continue
		}
		tried++
		if o, err := s.get(ctx, Item(key)); err == nil && o.uid == uid {
			return true
		}
	}
	return false
}
