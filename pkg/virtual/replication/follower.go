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
	// keepAsked is for how long what has no consumers here is followed after somebody has asked for it:
	// for longer than any watch lasts, so that who watches has asked.
	keepAsked = 2 * time.Hour
	// maxAsked is how many of these are followed at a time, and maxAskedOfCluster how many of one logical
	// cluster: each has its objects in memory.
	maxAsked, maxAskedOfCluster = 128, 16
	// lookInterval is the time between two looks for what nobody asks for any more.
	lookInterval = time.Minute
	// askedTimeout is how long requests wait for what has just begun to be followed.
	askedTimeout = 3 * time.Second
)

// follower follows a source.
type follower struct {
	board  *board.Board
	synced <-chan struct{}
	end    context.CancelFunc
	ended  chan struct{}
	// forget deletes what is kept of it.
	forget func() error
	// copies are the replicas of each object, one for each shard that has it, by name. The last
	// one was reported last, and is shown.
	copies map[string][]*unstructured.Unstructured
	began  time.Time

	// consumed is set while there are consumers here. While there are none, somebody has asked for it, last at asked,
	// as something that an export offers. The lock of the replicas guards them.
	consumed bool
	asked    time.Time
	as       offering
}

// stopAll ends all that is followed.
func (x *Replicas) stopAll() {
	x.mu.Lock()
	all := x.followed
	x.followed, x.running = map[source]*follower{}, nil
	x.mu.Unlock()
	for _, f := range all {
		f.stop()
	}
}

func (f *follower) stop() {
	f.end()
	<-f.ended
	f.board.Close()
}

// followWanted brings what is followed to what there are consumers for, or is asked for.
func (x *Replicas) followWanted(ctx context.Context) {
	consumed, complete := x.wanted()
	x.mu.Lock()
	for of := range consumed {
		if x.followed[of] == nil {
			x.followLocked(ctx, of)
		}
	}
	asked := map[source]*follower{}
	for of, f := range x.followed {
		if f.consumed = consumed[of] || f.consumed && !complete; !f.consumed {
			asked[of] = f
		}
	}
	x.mu.Unlock()
	x.endWatches()
	for of, f := range asked {
		x.stopUnasked(ctx, of, f)
	}
}

// stopUnasked stops what has no consumers if nobody has asked for it for long, or it is not offered any more.
func (x *Replicas) stopUnasked(ctx context.Context, of source, f *follower) {
	x.mu.Lock()
	asked, as := f.asked, f.as
	x.mu.Unlock()
	if x.config.Clock.Since(asked) < keepAsked {
		if now, err := x.offered(as); now == of || errors.Is(err, client.ErrIncomplete) {
			return
		}
	}
	x.mu.Lock()
	again := !f.asked.Equal(asked)
	if !again {
		delete(x.followed, of)
	}
	x.mu.Unlock()
	if again {
		return
	}
	f.stop()
	if err := f.forget(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot delete what was kept of a cached resource that nobody consumes any more", "resource", of.resource.String())
	}
}

// wanted returns what there are consumers for. It is not complete while something is not known, and what was seen
// before stays then.
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

// followLocked follows a source until ctx ends. It returns nil if that is not possible.
func (x *Replicas) followLocked(ctx context.Context, of source) *follower {
	informer, err := client.NewDynamicInformer(x.config.Cache.Shard(request.Wildcard).Cluster(of.cluster.Path()), apis.Identified(of.resource, of.identity), client.InformerOptions[*unstructured.Unstructured]{
		Name: "replicas of " + of.resource.GroupResource().String() + " of " + of.cluster.String(), Transform: replicas.ShowDeletion[*unstructured.Unstructured],
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot follow what a cached resource has replicated", "logicalCluster", of.cluster, "resource", of.resource.String())
		return nil
	}
	saved := replicas.NewSaved(informer)
	f := &follower{
		synced: informer.Synced(), ended: make(chan struct{}), copies: map[string][]*unstructured.Unstructured{}, began: x.config.Clock.Now(),
		forget: func() error { return x.config.Kept.Forget(saved) },
	}
	f.board = board.New(func() error {
		if !informer.HasSynced() {
			return notYet(of.resource.GroupResource(), cmp.Or(informer.LastError(), errNotYet))
		}
		return nil
	})
	informer.AddEventHandler(client.Handler[*unstructured.Unstructured]{
		OnAdd:    func(obj *unstructured.Unstructured, _ bool) { f.set(obj) },
		OnUpdate: func(_, obj *unstructured.Unstructured) { f.set(obj) },
		OnDelete: func(last *unstructured.Unstructured, _ bool) { f.remove(last) },
	})
	running, end := context.WithCancel(ctx)
	f.end = end
	x.followed[of] = f
	go func() {
		defer close(f.ended)
		x.run(running, informer, saved)
	}()
	return f
}

// run has an informer begin with what was kept of it, and run until ctx ends and that is kept again.
func (x *Replicas) run(ctx context.Context, informer client.Runner, saved snapshot.Source) {
	kept := x.config.Kept.Of(saved)
	kept.Restore(ctx)
	until, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() {
		if err := informer.Run(until); err != nil {
			klog.FromContext(ctx).Error(err, "An informer of replicas has ended")
		}
	})
	if err := kept.Run(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "What is known of replicas is not kept any more")
	}
	end()
	running.Wait()
}

var errNotYet = errors.New("it has just been asked for")

// notYet says that something is going to be known soon.
func notYet(resource schema.GroupResource, why error) error {
	err := request.Unavailable(fmt.Sprintf("the replicas of %s have not been read from the cache server yet, try again: %v", resource, why))
	err.ErrStatus.Details.Group, err.ErrStatus.Details.Kind = resource.Group, resource.Resource
	return err
}

// set adds or replaces a replica. Several shards may have one of the same object, e.g. while a
// logical cluster moves.
func (f *follower) set(obj *unstructured.Unstructured) {
	f.copies[obj.GetName()] = append(f.copiesOfOthers(obj), obj)
	f.board.Set(obj.GetName(), obj)
}

// remove removes a replica. The object exists for as long as any shard has a replica of it.
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

// copiesOfOthers returns the replicas of an object that are not of the shard of this one.
func (f *follower) copiesOfOthers(obj *unstructured.Unstructured) []*unstructured.Unstructured {
	shard := obj.GetAnnotations()[request.ShardAnnotation]
	return slices.DeleteFunc(slices.Clone(f.copies[obj.GetName()]), func(other *unstructured.Unstructured) bool {
		return other.GetAnnotations()[request.ShardAnnotation] == shard
	})
}

// boardOf returns what is known of a source, which an export offers. If it has just begun to be followed, as
// this is the first who asks, it waits for a moment.
func (x *Replicas) boardOf(ctx context.Context, of source, as offering) (*board.Board, error) {
	f, err := x.ask(of, as)
	if err != nil {
		return nil, err
	}
	wait := askedTimeout - x.config.Clock.Since(f.began)
	select {
	case <-f.synced:
		return f.board, nil
	default:
		if wait <= 0 {
			return f.board, nil // which says what it waits for
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer request.Pause(ctx)()
	select {
	case <-f.synced:
	case <-f.ended:
	case <-ctx.Done():
	}
	return f.board, nil
}

// ask returns what follows a source, and begins to follow it if nothing does.
func (x *Replicas) ask(of source, as offering) (*follower, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.followed[of]
	switch {
	case f != nil:
	case x.config.Cache == nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("%s cannot be shown: this installation has no cache server", as.resource)) //nolint:forbidigo // until it is configured
	case x.running == nil:
		return nil, notYet(as.resource, errNotYet)
	default:
		x.look() // there may be consumers, which have no limit
		if err := x.roomLocked(of.cluster, as.resource); err != nil {
			return nil, err
		}
		if f = x.followLocked(x.running, of); f == nil {
			return nil, notYet(as.resource, errNotYet)
		}
	}
	if !f.consumed {
		f.asked, f.as = x.config.Clock.Now(), as
	}
	return f, nil
}

// roomLocked refuses what is one too many of those that are followed as somebody asks for them.
func (x *Replicas) roomLocked(cluster logicalcluster.Name, resource schema.GroupResource) error {
	all, here := 0, 0
	for of, f := range x.followed {
		if f.consumed {
			continue
		}
		if all++; of.cluster == cluster {
			here++
		}
	}
	var says string
	switch {
	case here >= maxAskedOfCluster:
		says = fmt.Sprintf("%d other resources of the logical cluster %s", here, cluster)
	case all >= maxAsked:
		says = fmt.Sprintf("%d other resources", all)
	default:
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: fmt.Sprintf("the replicas of %s cannot be shown now: this shard has no consumers of them and already follows %s without, as was asked in the last %s, which is as many as it may; ask a shard with consumers, see status.endpoints of the endpoint slice",
			resource, says, keepAsked),
		Details: &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource, RetryAfterSeconds: 30},
	}}
}
