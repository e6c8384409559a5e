package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

const (
	// keepRequested is how long a source without consumers on this shard is followed after a request. It must exceed
	// the duration of watches.
	keepRequested = 2 * time.Hour
	// maxRequested limits the number of followed sources without consumers, because their objects are
	// kept in memory. maxRequestedPerCluster is the limit for one logical cluster.
	//
	//reference:limit shard | CachedResources that are read without a consumer on the shard | 429
	//reference:limit cluster | CachedResources that are read without a consumer on the shard | 429
	maxRequested, maxRequestedPerCluster = 128, 16
	checkInterval                        = time.Minute
	// requestedTimeout is how long requests wait for a new follower to sync.
	requestedTimeout = 3 * time.Second
)

// Run follows the sources with consumers until ctx ends.
func (x *Replicas) Run(ctx context.Context) error {
	if x.config.Cache == nil {
		<-ctx.Done()
		return nil
	}
	if err := x.config.Kept.Prune(); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to delete expired snapshots of cached resources")
	}
	x.mu.Lock()
	x.running = ctx
	x.mu.Unlock()
	defer x.stopAll()
	stop := x.config.FollowConsumers(func(export client.Key) {
		x.mu.Lock()
		x.consumed[export] = true
		x.mu.Unlock()
		x.enqueue()
	})
	defer stop()
	tick := x.config.Clock.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-x.changed:
		case <-tick.C():
		}
		x.followSources(ctx)
	}
}

func (x *Replicas) stopAll() {
	x.mu.Lock()
	all := x.followers
	x.followers, x.running = map[source]*follower{}, nil
	x.mu.Unlock()
	for _, f := range all {
		f.stop()
	}
}

func (f *follower) stop() {
	f.cancel()
	<-f.done
	f.board.Close()
}

// followSources starts and stops followers according to the current consumers and requests.
func (x *Replicas) followSources(ctx context.Context) {
	consumed, complete := x.wanted()
	x.mu.Lock()
	for of := range consumed {
		if x.followers[of] == nil {
			x.followLocked(ctx, of)
		}
	}
	unused := map[source]*follower{}
	for of, f := range x.followers {
		if f.consumed = consumed[of] || f.consumed && !complete; !f.consumed && !x.isRequested(of, f) {
			delete(x.followers, of)
			unused[of] = f
		}
	}
	x.mu.Unlock()
	x.endWatches()
	for of, f := range unused {
		f.stop()
		if err := f.deleteSnapshot(); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to delete the snapshot of an unused cached resource", "resource", of.resource.String())
		}
	}
}

// endWatches ends the watches of offerings that have another source now, or none.
func (x *Replicas) endWatches() {
	x.mu.Lock()
	all := map[offeringOf]bool{}
	for w := range x.watches {
		all[w.of] = true
	}
	x.mu.Unlock()
	for of := range all {
		if now, err := x.offered(of.offering); now == of.source || errors.Is(err, client.ErrIncomplete) {
			continue
		}
		x.mu.Lock()
		for w := range x.watches { // including those that were opened meanwhile
			if w.of == of {
				w.cancel()
			}
		}
		x.mu.Unlock()
	}
}

// isRequested reports whether there was a recent request for the source of a follower, and it is still offered.
func (x *Replicas) isRequested(of source, f *follower) bool {
	if x.config.Clock.Since(f.requested) >= keepRequested {
		return false
	}
	now, err := x.offered(f.as)
	return now == of || errors.Is(err, client.ErrIncomplete)
}

// wanted returns the sources with consumers. Existing followers must be kept if not all objects are loaded (complete).
func (x *Replicas) wanted() (wanted map[source]bool, complete bool) {
	x.mu.Lock()
	exports := make([]client.Key, 0, len(x.consumed))
	for export := range x.consumed {
		if x.config.Consumed(export) {
			exports = append(exports, export)
		} else {
			delete(x.consumed, export)
		}
	}
	x.mu.Unlock()
	wanted, complete = map[source]bool{}, true
	for _, key := range exports {
		export, err := x.config.Exports.Get(key.Cluster, "", key.Name)
		if err != nil {
			complete = complete && !errors.Is(err, client.ErrIncomplete)
			continue
		}
		for i := range export.Spec.Resources {
			if export.Spec.Resources[i].Storage.Virtual == nil {
				continue
			}
			of, err := x.sourceOf(export, &export.Spec.Resources[i])
			if err == nil {
				wanted[of] = true
			}
			complete = complete && !errors.Is(err, client.ErrIncomplete)
		}
	}
	return wanted, complete
}

// followLocked follows a source until ctx ends, or returns nil if that is not possible.
func (x *Replicas) followLocked(ctx context.Context, of source) *follower {
	informer, err := client.NewDynamicInformer(x.config.Cache.Shard(request.Wildcard).Cluster(of.cluster.Path()), apis.Identified(of.resource, of.identity), client.InformerOptions[*unstructured.Unstructured]{
		Name: "replicas of " + of.resource.GroupResource().String() + " of " + of.cluster.String(), Transform: replicas.ShowDeletion[*unstructured.Unstructured],
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to follow the replicas of a cached resource", "logicalCluster", of.cluster, "resource", of.resource.String())
		return nil
	}
	saved := replicas.NewSaved(informer)
	f := &follower{
		synced: informer.Synced(), done: make(chan struct{}), copies: map[string][]*unstructured.Unstructured{}, began: x.config.Clock.Now(),
		deleteSnapshot: func() error { return x.config.Kept.Forget(saved) },
	}
	f.board = board.NewBoard(func() error {
		if !informer.HasSynced() {
			return retryLater(of.resource.GroupResource(), cmp.Or(informer.LastError(), errJustRequested))
		}
		return nil
	})
	informer.AddEventHandler(client.Handler[*unstructured.Unstructured]{
		OnAdd:    func(obj *unstructured.Unstructured, _ bool) { f.set(obj) },
		OnUpdate: func(_, obj *unstructured.Unstructured) { f.set(obj) },
		OnDelete: func(last *unstructured.Unstructured, _ bool) { f.remove(last) },
	})
	running, cancel := context.WithCancel(ctx)
	f.cancel = cancel
	x.followers[of] = f
	go func() {
		defer close(f.done)
		x.run(running, informer, saved)
	}()
	return f
}

// run restores an informer from its snapshot, and runs it until ctx ends and a new snapshot has been written.
func (x *Replicas) run(ctx context.Context, informer client.Runner, saved snapshot.Source) {
	kept := x.config.Kept.Of(saved)
	kept.Restore(ctx)
	until, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() {
		if err := informer.Run(until); err != nil {
			klog.FromContext(ctx).Error(err, "Informer of replicas failed")
		}
	})
	if err := kept.Run(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to keep snapshots of replicas")
	}
	cancel()
	running.Wait()
}

var errJustRequested = errors.New("they have just been requested")

func retryLater(resource schema.GroupResource, why error) error {
	err := request.Unavailable(fmt.Sprintf("the replicas of %s have not been read from the cache server yet, try again: %v", resource, why))
	err.ErrStatus.Details.Group, err.ErrStatus.Details.Kind = resource.Group, resource.Resource
	return err
}

// set adds or replaces a replica. Several shards may have one, e.g. while a logical cluster is migrated.
func (f *follower) set(obj *unstructured.Unstructured) {
	f.copies[obj.GetName()] = append(f.copiesOfOthers(obj), obj)
	f.board.Set(obj.GetName(), obj)
}

// remove removes a replica. The object exists while any shard has a replica of it.
func (f *follower) remove(last *unstructured.Unstructured) {
	name, before := last.GetName(), f.copies[last.GetName()]
	others := f.copiesOfOthers(last)
	switch {
	case len(others) == 0:
		delete(f.copies, name)
		f.board.Set(name, nil)
	case len(others) < len(before):
		f.copies[name] = others
		if shown := others[len(others)-1]; shown != before[len(before)-1] {
			f.board.Set(name, shown)
		}
	}
}

// copiesOfOthers returns the replicas of the same object from other shards.
func (f *follower) copiesOfOthers(obj *unstructured.Unstructured) []*unstructured.Unstructured {
	shard := obj.GetAnnotations()[request.ShardAnnotation]
	return slices.DeleteFunc(slices.Clone(f.copies[obj.GetName()]), func(other *unstructured.Unstructured) bool {
		return other.GetAnnotations()[request.ShardAnnotation] == shard
	})
}

// boardOf returns the board of a source. If the source was not followed before, it waits for a limited time.
func (x *Replicas) boardOf(ctx context.Context, of source, as offering) (*board.Board, error) {
	f, err := x.followerOf(of, as)
	if err != nil {
		return nil, err
	}
	wait := requestedTimeout - x.config.Clock.Since(f.began)
	select {
	case <-f.synced:
		return f.board, nil
	default:
		if wait <= 0 {
			return f.board, nil // it returns an error until it is synced
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer request.Pause(ctx)()
	select {
	case <-f.synced:
	case <-f.done:
	case <-ctx.Done():
	}
	return f.board, nil
}

// followerOf returns the follower of a source, and starts one if necessary.
func (x *Replicas) followerOf(of source, as offering) (*follower, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.followers[of]
	switch {
	case f != nil:
	case x.config.Cache == nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("%s cannot be served: this installation has no cache server", as.resource)) //nolint:forbidigo // until it is configured
	case x.running == nil:
		return nil, retryLater(as.resource, errJustRequested)
	default:
		x.enqueue() // if there are consumers, the limit does not apply
		if err := x.checkLimitLocked(of.cluster, as.resource); err != nil {
			return nil, err
		}
		if f = x.followLocked(x.running, of); f == nil {
			return nil, retryLater(as.resource, errJustRequested)
		}
	}
	if !f.consumed {
		f.requested, f.as = x.config.Clock.Now(), as
	}
	return f, nil
}

// checkLimitLocked returns an error if too many sources without consumers are followed.
func (x *Replicas) checkLimitLocked(cluster logicalcluster.Name, resource schema.GroupResource) error {
	all, here := 0, 0
	for of, f := range x.followers {
		if f.consumed {
			continue
		}
		if all++; of.cluster == cluster {
			here++
		}
	}
	var others string
	switch {
	case here >= maxRequestedPerCluster:
		others = fmt.Sprintf("%d other resources of the logical cluster %s", here, cluster)
	case all >= maxRequested:
		others = fmt.Sprintf("%d other resources", all)
	default:
		return nil
	}
	err := request.StatusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
		fmt.Sprintf("the replicas of %s cannot be served now: this shard has no consumers of them and already follows %s without consumers that were requested in the last %s, which is the limit; use a shard with consumers, see status.endpoints of the endpoint slice",
			resource, others, keepRequested))
	err.ErrStatus.Details = &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource, RetryAfterSeconds: 30}
	return err
}
