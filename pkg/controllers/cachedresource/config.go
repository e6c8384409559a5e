package cachedresource

import (
	"context"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// Name is the name of the controller of CachedResources.
	Name = "cachedresource"
	// ClusterName is that of ClusterCachedResources.
	ClusterName = "clustercachedresource"

	// recheckInterval is the interval for checking state without events, e.g. whether the resource is still served.
	recheckInterval = time.Minute
	// recountInterval is the interval for counting objects without a write, with a request to the shard and one to a cache server. Both
	// are compared continuously, so the counts differ only briefly.
	recountInterval = time.Hour
	// minSoon and maxSoon bound the interval for checking whether replicas have been deleted.
	minSoon, maxSoon = 20 * time.Millisecond, 5 * time.Second
	// removeTimeout limits one wait for the deletion of replicas.
	removeTimeout = 10 * time.Second
)

// Stored is the relevant part of a stored object.
type Stored struct {
	Name    string
	UID     types.UID
	Created metav1.Time
	Labels  map[string]string
	Bytes   int64
}

// Store gives access to the storage and APIs of the shard.
type Store interface {
	// Served returns a served resource; false if the logical cluster does not serve it.
	Served(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource) (Served, bool, error)
	// Bytes returns the size of a logical cluster's data; false if it is unknown.
	Bytes(cluster logicalcluster.Name) (int64, bool)
	// Each calls visit for each object of a served resource.
	Each(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, visit func(Stored)) error
	// Listen calls changed with the key of each written object, or with an empty key if any object may have changed, until stop is
	// called.
	Listen(changed func(key string)) (stop func())
}

// Publications are the selections of objects that are replicated.
type Publications interface {
	Publish(publisher apis.Publisher, p *apis.Publication) error
	Published(publisher apis.Publisher) (replicated schema.GroupVersionResource, by int, ok bool)
	Bytes(publisher apis.Publisher) int64
	Withdraw(publisher apis.Publisher, revision uint64)
	Forget(publisher apis.Publisher)
}

// Table contains the replicated resources. Ensure adds a resource. Remove removes it and returns after its replicas were deleted.
type Table interface {
	Ensure(resource schema.GroupVersionResource) error
	Remove(ctx context.Context, resource schema.GroupResource) error
}

// Config configures a controller.
type Config struct {
	// Resource is the kind of cached resource, and Objects are its objects in all logical clusters of the shard.
	Resource client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]
	Objects  *client.Informer[*cachev1alpha1.CachedResource]
	// All are the informers of both kinds, CachedResources first.
	All []*client.Informer[*cachev1alpha1.CachedResource]
	// Local reaches the shard itself as system:masters, and Cache its replicas on the cache server; Cache may be nil.
	Local, Cache *client.Factory

	Store        Store
	Publications Publications
	Table        Table
	// Limit and LimitBytes limit the replicated objects of a logical cluster and their size; 0 means no limit.
	Limit      int
	LimitBytes int64
}

type controller struct {
	Config

	latest            reconcile.Latest[*cachev1alpha1.CachedResource]
	watched           *watched
	initialPublishers initialPublishers
}

// initialPublishers are the cached resources that had replicas when the controller started and have not been published
// since, by replicated resource.
type initialPublishers struct {
	mu sync.Mutex
	of map[schema.GroupResource][]apis.Publisher
}

func (c *controller) publisher(key client.Key) apis.Publisher {
	return apis.Publisher{Resource: c.Resource.Resource, Cluster: key.Cluster, Name: key.Name}
}

func stopped(object *cachev1alpha1.CachedResource, reason string, severity conditionsv1alpha1.ConditionSeverity, why string) {
	if object.Status.Phase == cachev1alpha1.CachedResourcePhaseReady {
		object.Status.Phase = cachev1alpha1.CachedResourcePhaseInitializing
	}
	conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reason, severity, "%s", why)
}

// Reasons that kcp does not define.
const (
	reasonConverted     = "ResourceConverted" // a webhook converts the objects
	reasonWaiting       = "Waiting"
	reasonNoCache       = "NoCacheServer"
	reasonIdentityInUse = "IdentityInUse" // for objects with a different API or kind
	reasonAlreadyCached = "AlreadyCached" // by another cached resource
	reasonTooMany       = "TooManyObjects"
)
