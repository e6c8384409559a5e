// Package replication shows to consumers what a cached resource of their provider has replicated:
//
//	APIExport ─ storage.virtual ─► slice ─► cached resource ─► /shards/*/clusters/<provider>/…/<resource>:<identity>
//	                                                               │ one informer and board (Replicas)
//	 under the URL of each consumer that binds the export ◄────────┤
//	 /services/replication/<provider>/<slice>/clusters/… ◄─────────┘ (Views)
//
// The shard follows what exports offer so that have consumers here, whether somebody reads it or
// not: who reads it needs nobody else, and goes on while caches are away.
package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

// Config is what is needed.
type Config struct {
	// Cache reaches the cache that is read; nil if there is none.
	Cache *client.Factory
	// Exports, slices and cached resources are those of all shards.
	Exports       *client.Dual[*apisv1alpha2.APIExport]
	Slices        *client.Dual[*cachev1alpha1.CachedResourceEndpointSlice]
	ClusterSlices *client.Dual[*kinds.ClusterCachedResourceEndpointSlice]
	Cached        *client.Dual[*cachev1alpha1.CachedResource]
	ClusterCached *client.Dual[*cachev1alpha1.CachedResource]
	// Consumed reports whether an export has bindings on this shard, and FollowConsumers calls
	// f for each that has, and when that changes, until stop is called.
	Consumed        func(export client.Key) bool
	FollowConsumers func(f func(export client.Key)) (stop func())
}

// Replicas are those that consumers of the shard see. Run them. Their methods may be called at the
// same time.
type Replicas struct {
	config  Config
	changed chan struct{} // has an element when something may be to follow

	mu sync.Mutex
	// consumed are the exports that have had consumers; followed is what is followed.
	consumed map[client.Key]bool
	followed map[source]*follower
}

// source is what one cached resource has replicated.
type source struct {
	cluster  logicalcluster.Name
	resource schema.GroupVersionResource
	identity string
}

// follower follows a source.
type follower struct {
	board *board.Board
	end   context.CancelFunc
	ended chan struct{}
	// shards has the shard of each object, by name.
	shards map[string]string
}

// New returns replicas that nobody follows before Run.
func New(config Config) *Replicas {
	x := &Replicas{config: config, changed: make(chan struct{}, 1), consumed: map[client.Key]bool{}, followed: map[source]*follower{}}
	follow(x, config.Exports, func(export *apisv1alpha2.APIExport) bool {
		return slices.ContainsFunc(export.Spec.Resources, func(r apisv1alpha2.ResourceSchema) bool { return r.Storage.Virtual != nil })
	})
	follow(x, config.Slices, nil)
	follow(x, config.ClusterSlices, nil)
	follow(x, config.Cached, nil)
	follow(x, config.ClusterCached, nil)
	return x
}

// follow has all looked at when an object changes that is one to look at.
func follow[T client.Object](x *Replicas, all *client.Dual[T], is func(T) bool) {
	look := func(obj T) {
		if is == nil || is(obj) {
			x.look()
		}
	}
	all.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, _ bool) { look(obj) },
		OnUpdate: func(old, obj T) { look(old); look(obj) },
		OnDelete: func(last T, _ bool) { look(last) },
	})
}

func (x *Replicas) look() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// Run follows what there are consumers for, until ctx ends.
func (x *Replicas) Run(ctx context.Context) error {
	defer x.stopAll()
	if x.config.Cache == nil {
		<-ctx.Done()
		return nil
	}
	stop := x.config.FollowConsumers(func(export client.Key) {
		x.mu.Lock()
		x.consumed[export] = true
		x.mu.Unlock()
		x.look()
	})
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-x.changed:
			x.followWanted(ctx)
		}
	}
}

// stopAll ends all that is followed.
func (x *Replicas) stopAll() {
	x.mu.Lock()
	all := x.followed
	x.followed = map[source]*follower{}
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

// followWanted brings what is followed to what there are consumers for.
func (x *Replicas) followWanted(ctx context.Context) {
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
	wanted, complete := map[source]bool{}, true
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
	for of := range wanted {
		x.start(ctx, of)
	}
	if complete { // what was seen before may only not be known now
		x.stopOthers(wanted)
	}
}

// stopOthers stops what is not wanted any more.
func (x *Replicas) stopOthers(wanted map[source]bool) {
	var others []*follower
	x.mu.Lock()
	for of, f := range x.followed {
		if !wanted[of] {
			others = append(others, f)
			delete(x.followed, of)
		}
	}
	x.mu.Unlock()
	for _, f := range others {
		f.stop()
	}
}

// start follows a source, unless it is followed.
func (x *Replicas) start(ctx context.Context, of source) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.followed[of] != nil {
		return
	}
	named := of.resource
	named.Resource += ":" + of.identity
	informer, err := client.NewDynamicInformer(x.config.Cache.Shard(request.Wildcard).Cluster(of.cluster.Path()), named, client.InformerOptions[*unstructured.Unstructured]{
		Name: "replicas of " + of.resource.GroupResource().String() + " of " + of.cluster.String(), Transform: client.ShowDeletion[*unstructured.Unstructured],
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot follow what a cached resource has replicated", "logicalCluster", of.cluster, "resource", of.resource.String())
		return
	}
	f := &follower{ended: make(chan struct{}), shards: map[string]string{}}
	f.board = board.New(func() error {
		if !informer.HasSynced() {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("the replicas of %s have not been read from the cache server yet, try again: %v", of.resource.GroupResource(), cmp.Or(informer.LastError(), errNotYet)))
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
		if err := informer.Run(running); err != nil {
			klog.FromContext(ctx).Error(err, "An informer of replicas has ended")
		}
	}()
}

var errNotYet = errors.New("it has just been bound")

// set notes a replica. While a logical cluster moves, two shards have one of each object.
func (f *follower) set(obj *unstructured.Unstructured) {
	f.shards[obj.GetName()] = obj.GetAnnotations()[request.ShardAnnotation]
	f.board.Set(obj.GetName(), obj)
}

// remove notes that a replica is gone, if it is the one that is shown.
func (f *follower) remove(last *unstructured.Unstructured) {
	name := last.GetName()
	if f.shards[name] == last.GetAnnotations()[request.ShardAnnotation] {
		delete(f.shards, name)
		f.board.Set(name, nil)
	}
}

// Of returns the objects of a resource that an export offers by virtual storage.
func (x *Replicas) Of(export client.Key, resource schema.GroupResource) definitions.Objects {
	return objects{replicas: x, resource: resource, source: func() (source, error) {
		offering, err := x.config.Exports.Get(export.Cluster, "", export.Name)
		if apierrors.IsNotFound(err) {
			return source{}, fmt.Errorf("the APIExport %s that offers them does not exist", export.Name)
		}
		if err != nil {
			return source{}, err
		}
		for i := range offering.Spec.Resources {
			if r := &offering.Spec.Resources[i]; r.Group == resource.Group && r.Name == resource.Resource && r.Storage.Virtual != nil {
				return x.sourceOf(offering, r)
			}
		}
		return source{}, fmt.Errorf("the APIExport %s does not offer them any more", export.Name)
	}}
}

// sourceOf returns where the objects of a resource come from.
func (x *Replicas) sourceOf(export *apisv1alpha2.APIExport, r *apisv1alpha2.ResourceSchema) (source, error) {
	provider, virtual := logicalcluster.From(export), r.Storage.Virtual
	cached, kind, err := x.cachedBy(provider, apis.CachedSliceKindOf(virtual.Reference), virtual.Reference.Name)
	if err != nil {
		return source{}, err
	}
	of := apis.CachedResourceOf(cached)
	switch {
	case of.Group != r.Group || of.Resource != r.Name:
		return source{}, fmt.Errorf("the %s %s of the provider replicates %s", kind, cached.Name, of.GroupResource())
	case cached.Status.IdentityHash == "" || cached.Status.IdentityHash != virtual.IdentityHash:
		return source{}, fmt.Errorf("the %s %s of the provider has another identity than storage.virtual.identityHash of its APIExport %s", kind, cached.Name, export.Name)
	}
	return source{provider, of, virtual.IdentityHash}, nil
}

// cachedBy returns the cached resource of a slice, and the kind of the former.
func (x *Replicas) cachedBy(provider logicalcluster.Name, kind, slice string) (cached *cachev1alpha1.CachedResource, of string, err error) {
	name, all := "", x.config.Cached
	switch kind {
	case apis.CachedSliceKind:
		of = "CachedResource"
		var s *cachev1alpha1.CachedResourceEndpointSlice
		if s, err = x.config.Slices.Get(provider, "", slice); err == nil {
			name = s.Spec.CachedResource.Name
		}
	case apis.ClusterCachedSliceKind:
		of, all = "ClusterCachedResource", x.config.ClusterCached
		var s *kinds.ClusterCachedResourceEndpointSlice
		if s, err = x.config.ClusterSlices.Get(provider, "", slice); err == nil {
			name = s.Spec.ClusterCachedResource.Name
		}
	default:
		return nil, "", errors.New("the APIExport refers to something else than an endpoint slice of a cached resource")
	}
	if apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("the %s %s of the provider does not exist", kind, slice)
	}
	if err != nil {
		return nil, "", err
	}
	cached, err = all.Get(provider, "", name)
	if apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("the %s %s of the provider does not exist", of, name)
	}
	return cached, of, err
}

// boardOf returns what is known of a source.
func (x *Replicas) boardOf(of source) (*board.Board, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch f := x.followed[of]; {
	case f != nil:
		return f.board, nil
	case x.config.Cache == nil:
		return nil, errors.New("this installation has no cache server")
	default:
		x.look()
		return nil, errNotYet
	}
}
