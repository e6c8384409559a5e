// Package garbagecollector deletes objects without existing owners, according to their owner references, as Kubernetes does.
// Logical clusters are independent of each other.
//
//	usage counter: all writes, from one watch of etcd (a callback, no goroutine)
//	     │  feed: decodes owner references and deletions
//	     ▼
//	graph: owner ─► dependents; objects without references are not included
//	     │  items to examine
//	     ▼
//	queue, logical clusters in round-robin order ─► collect: decide, orphan, finish
//	                                        │  owners by key and UID, absent only
//	                                        │  if confirmed by a quorum read
//	                                        ▼
//	                                    writer: DELETE as the collector, PATCH as the system
//
// The graph only determines which items to examine. Decisions are based on the objects themselves and are applied only to the
// examined version. docs/workspaces.md describes the behavior for users.
package garbagecollector

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/tenancy"
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

// requeueDelays are for parked items after a change of the APIs, which components observe at different times.
var requeueDelays = []time.Duration{0, time.Second, 10 * time.Second}

// Config configures the controller.
type Config struct {
	// Local reaches the shard as the system user, and Deleting as Username with the permissions of the system.
	Local, Deleting *client.Factory
	Store           Store
	Kinds           Kinds
	// InitialDelay is the delay before the deletion of garbage that existed before the first
	// collector.
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
	c.collector.backend = &shard{Kinds: config.Kinds, writer: &writer{deleting: config.Deleting, local: config.Local, lanes: newLanes()}, feed: c.feed}
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
	err := wait.PollUntilContextCancel(ctx, retryInterval, true, func(ctx context.Context) (begun bool, _ error) {
		err := c.feed.catchUp(ctx)
		if err == nil {
			err = c.begin(ctx)
		}
		if now := time.Now(); err != nil && ctx.Err() == nil && now.After(nextError) {
			logger.Error(err, "Failed to start garbage collection, retrying")
			nextError = now.Add(errorInterval)
		} else if err != nil && ctx.Err() == nil {
			logger.V(2).Info("Failed to start garbage collection, retrying", "err", err)
		}
		return err == nil, nil
	})
	if err != nil {
		return nil // stopped
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
	c.collector.metrics.parked.Set(float64(c.collector.parked.Len()))
}

func (c *Controller) unpark(queue reconcile.Queue[Item]) {
	for cluster := range c.feed.takeRedefined() {
		for _, item := range c.collector.parked.take(cluster) {
			for _, after := range requeueDelays {
				queue.AddAfter(item, after)
			}
		}
	}
	c.collector.metrics.parked.Set(float64(c.collector.parked.Len()))
}

type shard struct {
	Kinds
	*writer

	feed *feed
}

func (s *shard) get(ctx context.Context, item Item) (object, error) { return s.feed.get(ctx, item) }

func (s *shard) read(ctx context.Context, item Item) (object, error) {
	h, err := s.feed.store.ReadHeader(ctx, string(item))
	return objectOf(h), err
}

// catchUp implements backend. Only the workers call it, so there are few concurrent waits.
func (s *shard) catchUp(ctx context.Context, item Item, o object) error {
	version, err := strconv.ParseUint(o.version, 10, 64)
	if err != nil {
		return fmt.Errorf("resource version of %s: %w", o.uid, err)
	}
	if s.feed.caughtUp.Load() < version {
		ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
		defer cancel()
		if err := s.feed.catchUp(ctx); err != nil {
			return err
		}
	}
	return s.feed.allReadable(item.LogicalCluster())
}

func (s *shard) inOtherNamespace(ctx context.Context, owner Item, uid types.UID) bool {
	at := owner.key()
	if at.Namespace == metav1.NamespaceNone {
		return false
	}
	keys, err := s.feed.store.Keys(ctx, storage.Key(owner.prefix(), at.Identity, at.Cluster, "", ""), maxKeys)
	if err != nil {
		return false
	}
	tried := 0
	for _, key := range keys {
		if Item(key).key().Name != at.Name || tried == maxNamespaces {
			continue
		}
		tried++
		if o, err := s.get(ctx, Item(key)); err == nil && o.uid == uid {
			return true
		}
	}
	return false
}

// begunAnnotation is the time at which the garbage collector begins to delete garbage that existed
// before its first start.
//
//reference:metadata LogicalCluster of `system:admin` | garbage collector
const begunAnnotation = "internal.shardplane.io/garbage-collected-since"

// begin delays the deletion of garbage that existed before the first collector. A restart during the delay repeats it.
func (c *Controller) begin(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	in := kinds.LogicalClusters.In(c.config.Local.Cluster(tenancy.AdminCluster.Path()))
	lc, err := in.Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	if err != nil {
		// If the shard has not created its own logical cluster yet, it has no data from before the first collector.
		c.newData = c.newData || apierrors.IsNotFound(err)
		return fmt.Errorf("reading the start time of garbage collection: %w", err)
	}
	until, err := time.Parse(time.RFC3339, lc.Annotations[begunAnnotation])
	if err == nil && !time.Now().Before(until) {
		return nil
	}
	first := err != nil
	var found map[Item]types.UID
	if !first || !c.newData {
		reads := func() error {
			_, err := in.Get(ctx, lc.Name, metav1.GetOptions{})
			return err
		}
		if found, err = c.garbage(ctx, reads); err != nil {
			return err
		}
	}
	if first {
		until = time.Now()
		if len(found) > 0 {
			until = until.Add(c.config.InitialDelay).Truncate(time.Second)
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{begunAnnotation: until.UTC().Format(time.RFC3339)}}})
		if err != nil {
			return fmt.Errorf("encoding a patch: %w", err)
		}
		if _, err := in.Patch(ctx, lc.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("recording the start time of garbage collection: %w", err)
		}
	}
	if len(found) == 0 {
		return nil
	}
	counts := map[string]int{}
	for item := range found {
		counts[strings.Trim(item.prefix(), "/")]++
	}
	logger.Info("Deleting objects without existing owners after the initial delay, because no garbage collector has processed this data before: disable garbage collection to keep them",
		"objects", len(found), "from", until, "byResource", summary(counts))
	for item := range found {
		logger.V(2).Info("Object will be deleted", "object", item)
	}
	c.collector.delayed.set(until, found)
	return nil
}

func summary(counts map[string]int) []string {
	const most = 20
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	out := make([]string, 0, min(len(names), most))
	for _, name := range names[:min(len(names), most)] {
		out = append(out, fmt.Sprintf("%s: %d", name, counts[name]))
	}
	return out
}

// garbage returns the objects to delete, and the objects for which this cannot be determined now. reads returns an
// error if reads fail in general, so that errors can be attributed to objects.
func (c *Controller) garbage(ctx context.Context, reads func() error) (map[Item]types.UID, error) {
	found := map[Item]types.UID{}
	for _, item := range c.collector.graph.all() {
		o, remove, err := c.isGarbage(ctx, item)
		if err != nil {
			if err := reads(); err != nil {
				return nil, fmt.Errorf("counting garbage: %w", err)
			}
			klog.FromContext(ctx).Error(err, "Failed to determine whether an object is garbage: if it is, it will be deleted after the initial delay", "object", item)
		}
		if err != nil || remove {
			found[item] = o.uid
		}
	}
	return found, nil
}

func (c *Controller) isGarbage(ctx context.Context, item Item) (object, bool, error) {
	o, err := c.collector.backend.get(ctx, item)
	if err != nil || o.uid == "" || o.deleting || len(o.references) == 0 {
		return o, false, err
	}
	v, err := c.collector.decide(ctx, item, o)
	return o, v.remove != "", err
}
