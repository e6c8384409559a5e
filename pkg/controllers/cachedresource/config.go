package cachedresource

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// Name is the name of the controller of CachedResources.
	Name = "cachedresource"
	// ClusterName is the name of the controller of ClusterCachedResources.
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
	// Listen calls changed with the key of each written object, or empty if any may have changed, until stop is called.
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

// initialPublishers are cached resources, by replicated resource, with replicas at the start that are not published yet.
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

// recountDelay is the delay between a write of an object and the count of all objects.
const recountDelay = time.Second

// watched maps written keys to the cached resources that depend on them.
type watched struct {
	mu sync.Mutex
	// of contains the cached resources by watched key: a key prefix of objects, or the key of a secret.
	of tenancy.Dependencies[client.Key]
	by map[client.Key]watches
}

// watches replaces verified and counted when the secret or the objects change, so that results from before have no effect.
type watches struct {
	objects, secret string
	verified        *bool    // whether the secret was verified
	counted         *counted // the state at the last count
}

// Served describes a resource that a logical cluster serves.
type Served struct {
	Kind       string
	Namespaced bool
	// API is the identity of the export from which it is bound, if any.
	API string
	// Converted is set if a webhook converts stored objects to the requested version.
	Converted bool
	// Prefix is the key prefix of its objects.
	Prefix string
}

func newWatched() *watched { return &watched{by: map[client.Key]watches{}} }

// counted is the state on which a count depends.
type counted struct {
	version string // of the cached resource
	served  Served
	at      time.Time
}

// secret records the secret of a cached resource. It must be called before the secret is read.
func (w *watched) secret(key, secret client.Key) {
	on := strings.Join([]string{"", "core", corev1.ResourceSecrets.String(), secret.Cluster.String(), secret.Namespace, secret.Name}, "/")
	w.change(key, func(its *watches) { its.secret = on })
}

// objects records the key prefix of the objects, which may be empty. It must be called before they are counted.
func (w *watched) objects(key client.Key, prefix string) {
	w.change(key, func(its *watches) { its.objects = prefix })
}

func (w *watched) change(key client.Key, change func(its *watches)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	its, known := w.by[key]
	if !known {
		its.verified, its.counted = new(bool), new(counted)
	}
	change(&its)
	w.by[key] = its
	w.of.Forget(key)
	w.of.Remember(key, its.objects)
	w.of.Remember(key, its.secret)
}

func (w *watched) forget(key client.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of.Forget(key)
	delete(w.by, key)
}

func (w *watched) verified(key client.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return ptr.Deref(w.by[key].verified, false)
}

// verify returns a function that records that the secret, which is read after this call, is valid.
func (w *watched) verify(key client.Key) (right func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	verified := cmp.Or(w.by[key].verified, new(bool))
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		*verified = true
	}
}

// count returns a function that records the result of a count that begins after this call.
func (w *watched) count(key client.Key) (done func(c counted)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := cmp.Or(w.by[key].counted, new(counted))
	return func(c counted) {
		w.mu.Lock()
		defer w.mu.Unlock()
		*last = c
	}
}

// counted returns the state at the last count; the zero value if the objects have changed since.
func (w *watched) counted(key client.Key) counted {
	w.mu.Lock()
	defer w.mu.Unlock()
	return ptr.Deref(w.by[key].counted, counted{})
}

// notify returns the cached resources that depend on a written key, and whether it is a secret. An empty key stands for any object.
func (w *watched) notify(key string) (all []client.Key, secret bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key == "" {
		for key, its := range w.by {
			its.verified, its.counted = new(bool), new(counted)
			w.by[key] = its
			all = append(all, key)
		}
		return all, true
	}
	for _, key := range w.of.Of(key) {
		its := w.by[key]
		its.verified = new(bool)
		w.by[key] = its
		all, secret = append(all, key), true
	}
	for _, key := range w.of.Of(key[:strings.LastIndexByte(key, '/')+1]) {
		its := w.by[key]
		its.counted = new(counted)
		w.by[key] = its
		all = append(all, key)
	}
	return all, secret
}

// verify sets the identity from a secret, which may be nil, and returns a problem, if any. An existing identity does not change.
func verify(object *cachev1alpha1.CachedResource, ref corev1.SecretReference, secret *corev1.Secret) (problem string) {
	where := ref.Namespace + "/" + ref.Name
	if secret == nil {
		return fmt.Sprintf("The secret %s does not exist: create it with the identity under %q", where, apis.IdentityKey)
	}
	if object.Spec.Identity == nil || object.Spec.Identity.SecretRef == nil {
		object.Spec.Identity = &cachev1alpha1.Identity{SecretRef: &ref}
	}
	key := secret.Data[apis.IdentityKey]
	switch {
	case len(key) == 0:
		return fmt.Sprintf("The secret %s has no value under %q: store the identity there", where, apis.IdentityKey)
	case object.Status.IdentityHash == "":
		object.Status.IdentityHash = apis.IdentityHash(key)
	case object.Status.IdentityHash != apis.IdentityHash(key):
		return fmt.Sprintf("The secret %s has another identity than status.identityHash, which never changes and with which the objects stay replicated: restore the previous identity, or create another object", where)
	}
	return ""
}
