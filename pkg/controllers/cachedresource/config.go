package cachedresource

import (
	"context"
	"sync"
	"time"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// Name is the name of the controller of CachedResources.
	Name = "cachedresource"
	// ClusterName is that of ClusterCachedResources.
	ClusterName = "clustercachedresource"

	// lookAgain is how often something is looked at that nobody tells of, such as whether the
	// resource is still served.
	lookAgain = time.Minute
	// countAgain is how often objects are counted that nobody has told of, by a request to the shard and one
	// to a cache server: on both they are compared all the time, so that counts differ for a moment only.
	countAgain = time.Hour
	// minSoon and maxSoon bound the time between two looks whether replicas are gone.
	minSoon, maxSoon = 20 * time.Millisecond, 5 * time.Second
	// removeTimeout bounds one wait until replicas are deleted.
	removeTimeout = 10 * time.Second
)

// Stored is what is to be known of an object.
type Stored struct {
	Name    string
	UID     types.UID
	Created metav1.Time
	Labels  map[string]string
	Bytes   int64
}

// Store is what the shard stores and serves.
type Store interface {
	// Served returns what a logical cluster serves, false if it serves no such resource.
	Served(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource) (Served, bool, error)
	// Bytes returns how many bytes a logical cluster stores in all, false if that is not known yet.
	Bytes(cluster logicalcluster.Name) (int64, bool)
	// Each calls visit for each object of a resource that a logical cluster serves.
	Each(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, visit func(Stored)) error
	// Listen has changed called with the key of each object that is written, or with none when
	// any may have been, until stop is called.
	Listen(changed func(key string)) (stop func())
}

// Publications are what is read to be replicated.
type Publications interface {
	Publish(publisher apis.Publisher, p *apis.Publication) error
	Published(publisher apis.Publisher) (replicated schema.GroupVersionResource, by int, ok bool)
	Bytes(publisher apis.Publisher) int64
	Withdraw(publisher apis.Publisher, revision uint64)
	Forget(publisher apis.Publisher)
}

// Table is what is replicated. Ensure has a resource replicated that may be already, Remove ends
// that and returns when its replicas are gone.
type Table interface {
	Ensure(resource schema.GroupVersionResource) error
	Remove(ctx context.Context, resource schema.GroupResource) error
}

// Config is what the controller needs.
type Config struct {
	// Resource is the one that the controller is for, and Objects are those of all logical
	// clusters of the shard.
	Resource client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]
	Objects  *client.Informer[*cachev1alpha1.CachedResource]
	// All are those of both names, CachedResources first.
	All []*client.Informer[*cachev1alpha1.CachedResource]
	// Local reaches the shard itself as system:masters, and Cache what it has on the cache server;
	// nil where there is none.
	Local, Cache *client.Factory

	Store        Store
	Publications Publications
	Table        Table
	// Limit is how many objects a logical cluster may have replicated, and LimitBytes how many bytes
	// these may have; 0 is any number.
	Limit      int
	LimitBytes int64
}

type controller struct {
	Config

	latest  reconcile.Latest[*cachev1alpha1.CachedResource]
	watched *watched
	had     had
}

// had are the cached resources that had replicas when the controller began, by what these are on cache servers, as
// far as they are not known yet.
type had struct {
	mu sync.Mutex
	of map[schema.GroupResource][]apis.Publisher
}

func (c *controller) publisher(key client.Key) apis.Publisher {
	return apis.Publisher{Resource: c.Resource.Resource, Cluster: key.Cluster, Name: key.Name}
}

// stopped says in a cached resource why nothing of it is to be replicated.
func stopped(object *cachev1alpha1.CachedResource, reason string, severity conditionsv1alpha1.ConditionSeverity, why string) {
	if object.Status.Phase == cachev1alpha1.CachedResourcePhaseReady {
		object.Status.Phase = cachev1alpha1.CachedResourcePhaseInitializing
	}
	conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reason, severity, "%s", why)
}

// The reasons that kcp has no word for.
const (
	// reasonConverted says that objects are not stored as they are to be replicated.
	reasonConverted = "ResourceConverted"
	// reasonWaiting says that something else is to be done first.
	reasonWaiting = "Waiting"
	// reasonNoCache says that there is no cache server.
	reasonNoCache = "NoCacheServer"
	// reasonIdentityInUse says that others have other objects under the identity.
	reasonIdentityInUse = "IdentityInUse"
	// reasonAlreadyCached says that another one has the resource replicated.
	reasonAlreadyCached = "AlreadyCached"
	// reasonTooMany says that not all objects are replicated.
	reasonTooMany = "TooManyObjects"
)
