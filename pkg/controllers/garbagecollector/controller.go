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

// Name is the name of the controller, and Username the one under which it deletes.
const (
	Name     = "garbagecollector"
	Username = "system:serviceaccount:kube-system:generic-garbage-collector"
)

const (
	// perCluster is how many workers one logical cluster keeps busy at most.
	perCluster = workers / 4
	// timeout bounds the work on one object, such as the orphaning of all its dependents. What
	// was done until then stays done.
	timeout = 5 * time.Minute
	// catchUpTimeout bounds how long it may take until everything that was written is seen.
	catchUpTimeout = 10 * time.Second
	// beginAgain is when the start is tried again.
	beginAgain = 100 * time.Millisecond
	// complainAfter is after how long without a start the log says why, and how often then.
	complainAfter = time.Minute
	// Among so many keys, and in so many other namespaces, an owner is looked for, to tell of it.
	maxKeys, maxNamespaces = 1000, 20
)

// lookAgain is when what was parked is looked at after something else is served: what serves
// it may hear of it a moment later.
var lookAgain = []time.Duration{0, time.Second, 10 * time.Second}

// Kinds say what logical clusters serve.
type Kinds interface {
	// KindOf returns what is served under a kind, false if there is nothing.
	KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (storage.Kind, bool, error)
	// Served returns what is served of the resource whose keys have a prefix, in any version.
	Served(ctx context.Context, cluster logicalcluster.Name, prefix, identity string) (storage.Kind, bool, error)
}

// Config is what the controller needs.
type Config struct {
	// Local reaches the shard itself as the system, and Deleting as Username with the rights
	// of the system.
	Local, Deleting *client.Factory
	Store           Store
	Kinds           Kinds
	// InitialDelay is how long what was there before any collector waits for its deletion.
	InitialDelay time.Duration
	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
}

// Controller collects garbage.
type Controller struct {
	config    Config
	collector *collector
	feed      *feed
	queue     *reconcile.Controller[Item]
	// newData is set where the collector has seen the data begin.
	newData bool
}

// New returns the controller.
func New(config Config) *Controller {
	c := &Controller{config: config, collector: newCollector(config.Metrics)}
	c.feed = newFeed(config.Store, c.collector.graph, &c.collector.parked)
	c.collector.backend = &shard{
		Kinds:    config.Kinds,
		writer:   &writer{deleting: config.Deleting, local: config.Local},
		feed:     c.feed,
		caughtUp: newTogether(c.feed.catchUp),
	}
	c.queue = reconcile.New(reconcile.Config[Item]{
		Name:       Name,
		Reconcile:  c.collector.collect,
		Workers:    workers,
		PerCluster: perCluster,
		MinBackoff: minBackoff,
		MaxBackoff: maxBackoff,
		Timeout:    timeout,
		Sources:    []reconcile.Source[Item]{c.source},
	})
	return c
}

// Name returns the controller's name.
func (*Controller) Name() string { return Name }

// Run collects until ctx ends, and returns when everything has ended that it started.
func (c *Controller) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("controller", Name)
	ctx = klog.NewContext(ctx, logger)
	following, unfollow := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer unfollow()
	running.Go(func() { c.feed.run(following) })
	complain := time.Now().Add(complainAfter)
	for {
		err := c.feed.catchUp(ctx)
		if err == nil {
			err = c.begin(ctx)
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil // it was ended, which is no failure
		}
		if now := time.Now(); now.After(complain) {
			logger.Error(err, "Cannot begin to collect garbage, trying again")
			complain = now.Add(complainAfter)
		} else {
			logger.V(2).Info("Cannot begin to collect garbage, trying again", "err", err)
		}
		select {
		case <-time.After(beginAgain):
		case <-ctx.Done():
			return nil
		}
	}
	return c.queue.Run(ctx)
}

// source puts into the queue what the graph says, and what was parked.
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
			for _, after := range lookAgain {
				queue.AddAfter(item, after)
			}
		}
	}
	c.collector.metrics.parked.Set(float64(c.collector.parked.len()))
}

// shard is the backend as it is.
type shard struct {
	Kinds
	*writer

	feed     *feed
	caughtUp *together
}

var _ backend = &shard{}

// get implements backend.
func (s *shard) get(ctx context.Context, item Item) (object, error) { return s.feed.get(ctx, item) }

// read implements backend.
func (s *shard) read(ctx context.Context, item Item) (object, error) {
	h, err := s.feed.store.ReadHeader(ctx, string(item))
	return objectOf(h), err
}

// catchUp implements backend. Of all that wait for one owner, the first waits.
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

// elsewhere implements backend.
func (s *shard) elsewhere(ctx context.Context, owner Item, uid types.UID) bool {
	place := owner.place()
	if place.Namespace == metav1.NamespaceNone {
		return false
	}
	keys, err := s.feed.store.Keys(ctx, storage.Key(owner.prefix(), place.Identity, place.Cluster, "", ""), maxKeys)
	if err != nil {
		return false
	}
	looked := 0
	for _, key := range keys {
		if Item(key).place().Name != place.Name || looked == maxNamespaces {
			continue
		}
		looked++
		if o, err := s.get(ctx, Item(key)); err == nil && o.uid == uid {
			return true
		}
	}
	return false
}
