// Package replication shows to consumers what a cached resource of their provider has replicated:
//
//	APIExport ─ storage.virtual ─► slice ─► cached resource ─► /shards/*/clusters/<provider>/…/<resource>:<identity>
//	                                                               │ one informer and board (Replicas)
//	 under the URL of each consumer that binds the export ◄────────┤
//	 /services/replication/<provider>/<slice>/clusters/… ◄─────────┘ (Views)
//
// The shard follows what exports offer so that have consumers here, whether somebody reads it or
// not: who reads it needs nobody else, and goes on while caches are away, also if the shard starts then.
// What else is asked for, by a view, it follows from then on until nobody has asked for a while.
package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
)

// Config is what is needed.
type Config struct {
	// Cache reaches the cache that is read; nil if there is none.
	Cache *client.Factory
	// Exports, slices and cached resources are those of all shards.
	Exports       *replicas.Dual[*apisv1alpha2.APIExport]
	Slices        *replicas.Dual[*cachev1alpha1.CachedResourceEndpointSlice]
	ClusterSlices *replicas.Dual[*kinds.ClusterCachedResourceEndpointSlice]
	Cached        *replicas.Dual[*cachev1alpha1.CachedResource]
	ClusterCached *replicas.Dual[*cachev1alpha1.CachedResource]
	// Consumed reports whether an export has bindings on this shard, and FollowConsumers calls
	// f for each that has, and when that changes, until stop is called.
	Consumed        func(export client.Key) bool
	FollowConsumers func(f func(export client.Key)) (stop func())
	// Kept has what is followed from one process to the next; nil keeps nothing.
	Kept *snapshot.Directory
	// Clock tells the time; nil is the real one.
	Clock clock.WithTicker
}

// Replicas are those that consumers of the shard see. Run them. Their methods may be called at the
// same time.
type Replicas struct {
	config  Config
	changed chan struct{} // has an element when something may be to follow

	mu sync.Mutex
	// consumed are the exports that have had consumers; followed is what is followed, as long as running,
	// which is nil before and after.
	consumed map[client.Key]bool
	followed map[source]*follower
	watches  map[shownFrom]map[*openWatch]struct{}
	running  context.Context //nolint:containedctx // that of Run, for what is followed when somebody asks
}

// source is what one cached resource has replicated.
type source struct {
	cluster  logicalcluster.Name
	resource schema.GroupVersionResource
	identity string
}

// offering is a resource of an export, which consumers see, or who asks for it.
type offering struct {
	export   client.Key
	resource schema.GroupResource
}

// New returns replicas that nobody follows before Run.
func New(config Config) *Replicas {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	x := &Replicas{config: config, changed: make(chan struct{}, 1), consumed: map[client.Key]bool{}, followed: map[source]*follower{}, watches: map[shownFrom]map[*openWatch]struct{}{}}
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
func follow[T client.Object](x *Replicas, all *replicas.Dual[T], is func(T) bool) {
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
	if x.config.Cache == nil {
		<-ctx.Done()
		return nil
	}
	if err := x.config.Kept.Prune(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot delete what was kept of cached resources and is too old")
	}
	x.mu.Lock()
	x.running = ctx
	x.mu.Unlock()
	defer x.stopAll()
	stop := x.config.FollowConsumers(func(export client.Key) {
		x.mu.Lock()
		x.consumed[export] = true
		x.mu.Unlock()
		x.look()
	})
	defer stop()
	tick := x.config.Clock.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-x.changed:
		case <-tick.C():
		}
		x.followWanted(ctx)
	}
}

// Of returns the objects of a resource that an export offers by virtual storage.
func (x *Replicas) Of(export client.Key, resource schema.GroupResource) definitions.Objects {
	return objects{replicas: x, offering: offering{export, resource}}
}

// offered returns where the objects come from that an export offers, or why nobody knows.
func (x *Replicas) offered(o offering) (source, error) {
	export, err := x.config.Exports.Get(o.export.Cluster, "", o.export.Name)
	if apierrors.IsNotFound(err) {
		return source{}, fmt.Errorf("the APIExport %s that offers them does not exist", o.export.Name)
	}
	if err != nil {
		return source{}, err
	}
	for i := range export.Spec.Resources {
		if r := &export.Spec.Resources[i]; r.Group == o.resource.Group && r.Name == o.resource.Resource && r.Storage.Virtual != nil {
			return x.sourceOf(export, r)
		}
	}
	return source{}, fmt.Errorf("the APIExport %s does not offer them any more", o.export.Name)
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
