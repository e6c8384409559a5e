// Package replication serves the replicas of cached resources to the consumers of their provider:
//
//	APIExport ─ storage.virtual ─► slice ─► cached resource ─► /shards/*/clusters/<provider>/…/<resource>:<identity>
//	                                                               │ one informer and board (Replicas)
//	 under the URL of each consumer that binds the export ◄────────┤
//	 /services/replication/<provider>/<slice>/clusters/… ◄─────────┘ (VirtualWorkspaces)
//
// The shard follows all offerings that have consumers here, even without requests, so that reads work while caches are
// unreachable, even after a restart. Other offerings are followed from the first request until they have been idle.
package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
	"github.com/shardplane/shardplane/pkg/virtual/board"
)

// Config configures Replicas.
type Config struct {
	// Cache is a client of the cache, or nil.
	Cache *client.Factory
	// The following readers contain the objects of all shards.
	Exports       *replicas.Dual[*apisv1alpha2.APIExport]
	Slices        *replicas.Dual[*cachev1alpha1.CachedResourceEndpointSlice]
	ClusterSlices *replicas.Dual[*apis.ClusterCachedResourceEndpointSlice]
	Cached        *replicas.Dual[*cachev1alpha1.CachedResource]
	ClusterCached *replicas.Dual[*cachev1alpha1.CachedResource]
	// Consumed and FollowConsumers are implemented by bindings.Index.
	Consumed        func(export client.Key) bool
	FollowConsumers func(f func(export client.Key)) (stop func())
	// Kept contains the snapshots of informers, for the next process. It is optional.
	Kept *snapshot.Directory
	// Clock is the real clock if nil.
	Clock clock.WithTicker
}

// Replicas contains the replicas that consumers of the shard can read. It must be run, and is safe for concurrent use.
type Replicas struct {
	config  Config
	changed chan struct{} // has an element if followSources must run

	mu        sync.Mutex
	consumed  map[client.Key]bool // exports that have had consumers
	followers map[source]*follower
	watches   map[*openWatch]struct{}
	// running is the context of Run, for followers that requests start. It is nil before and after.
	running context.Context //nolint:containedctx // see above
}

// source identifies the replicas of a cached resource.
type source struct {
	cluster  logicalcluster.Name
	resource schema.GroupVersionResource
	identity string
}

type offering struct {
	export   client.Key
	resource schema.GroupResource
}

type offeringOf struct {
	offering
	source
}

type openWatch struct {
	of     offeringOf
	cancel context.CancelFunc
}

type follower struct {
	board          *board.Board
	synced         <-chan struct{}
	cancel         context.CancelFunc
	done           chan struct{}
	deleteSnapshot func() error
	// copies are the replicas of each object, by name, one for each shard that has it. Clients get the last one.
	copies map[string][]*unstructured.Unstructured
	began  time.Time

	// consumed is set while the offering has consumers here. Otherwise, requested is the time of the last request
	// for it. They are guarded by the lock of the replicas.
	consumed  bool
	requested time.Time
	as        offering
}

// NewReplicationVirtualWorkspace returns Replicas, which follow nothing before Run.
func NewReplicationVirtualWorkspace(config Config) *Replicas {
	config.Clock = cmp.Or[clock.WithTicker](config.Clock, clock.RealClock{})
	x := &Replicas{config: config, changed: make(chan struct{}, 1), consumed: map[client.Key]bool{}, followers: map[source]*follower{}, watches: map[*openWatch]struct{}{}}
	follow(x, config.Exports, func(export *apisv1alpha2.APIExport) bool {
		return slices.ContainsFunc(export.Spec.Resources, func(r apisv1alpha2.ResourceSchema) bool { return r.Storage.Virtual != nil })
	})
	follow(x, config.Slices, nil)
	follow(x, config.ClusterSlices, nil)
	follow(x, config.Cached, nil)
	follow(x, config.ClusterCached, nil)
	return x
}

// follow enqueues a run of followSources when a relevant object changes.
func follow[T client.Object](x *Replicas, all *replicas.Dual[T], relevant func(T) bool) {
	enqueue := func(obj T) {
		if relevant == nil || relevant(obj) {
			x.enqueue()
		}
	}
	all.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, _ bool) { enqueue(obj) },
		OnUpdate: func(old, obj T) { enqueue(old); enqueue(obj) },
		OnDelete: func(last T, _ bool) { enqueue(last) },
	})
}

func (x *Replicas) enqueue() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

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
	return source{}, fmt.Errorf("the APIExport %s no longer offers them", o.export.Name)
}

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

// sliceOf returns the names of the export and of the cached resource in an endpoint slice.
func (x *Replicas) sliceOf(provider logicalcluster.Name, kind, slice string) (export, cached string, err error) {
	switch kind {
	case apis.CachedSliceKind:
		var s *cachev1alpha1.CachedResourceEndpointSlice
		if s, err = x.config.Slices.Get(provider, "", slice); err == nil {
			export, cached = s.Spec.APIExport.Name, s.Spec.CachedResource.Name
		}
	case apis.ClusterCachedSliceKind:
		var s *apis.ClusterCachedResourceEndpointSlice
		if s, err = x.config.ClusterSlices.Get(provider, "", slice); err == nil {
			export, cached = s.Spec.APIExport.Name, s.Spec.ClusterCachedResource.Name
		}
	default:
		err = errors.New("the APIExport does not refer to an endpoint slice of a cached resource")
	}
	return export, cached, err
}

// cachedBy returns the cached resource of an endpoint slice, and its kind.
func (x *Replicas) cachedBy(provider logicalcluster.Name, kind, slice string) (cached *cachev1alpha1.CachedResource, of string, err error) {
	_, name, err := x.sliceOf(provider, kind, slice)
	if apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("the %s %s of the provider does not exist", kind, slice)
	}
	if err != nil {
		return nil, "", err
	}
	of, all := "CachedResource", x.config.Cached
	if kind == apis.ClusterCachedSliceKind {
		of, all = "ClusterCachedResource", x.config.ClusterCached
	}
	cached, err = all.Get(provider, "", name)
	if apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("the %s %s of the provider does not exist", of, name)
	}
	return cached, of, err
}
