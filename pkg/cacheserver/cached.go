package cacheserver

import (
	"context"
	"slices"
	"strings"
	"sync"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

// cachedKinds contains the resources that CachedResources replicate, as <resource>:<identity>. A shard that replicates a
// CachedResource may then replicate its objects. A resource is served until the last CachedResource that selects it is
// deleted. It implements definitions.Source.
type cachedKinds struct {
	decrypt func(key string, value []byte) ([]byte, error)

	mu sync.RWMutex
	// at are the CachedResources by key, and reading those that have been read so far by a resync.
	at, reading map[string]*cachedKind
	// served are the definitions with their reference counts. If CachedResources specify different kinds, the first one
	// is used.
	served map[cachedAs]*servedKind

	listeners definitions.Listeners[definitions.Change]
}

// cachedKind is the resource that a CachedResource replicates, without a kind if the CachedResource cannot be decoded.
type cachedKind struct {
	cachedAs

	kind, shard, cluster string
}

// cachedAs identifies a replicated resource.
type cachedAs struct {
	schema.GroupVersionResource

	identity string
}

type servedKind struct {
	definition *definitions.Definition
	users      int
}

func newCachedKinds(decrypt func(key string, value []byte) ([]byte, error)) *cachedKinds {
	return &cachedKinds{decrypt: decrypt, served: map[cachedAs]*servedKind{}}
}

// begin starts a resync. The previous resources are served until it is complete.
func (c *cachedKinds) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = map[string]*cachedKind{}
}

func (c *cachedKinds) complete() {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.at
	c.at, c.reading = c.reading, nil
	for key, kind := range c.at {
		c.replaceLocked(before[key], kind)
		delete(before, key)
	}
	for _, kind := range before {
		c.removeLocked(kind)
	}
}

// observe handles each stored value and each change.
func (c *cachedKinds) observe(key string, after []byte) {
	segments := strings.Split(key, "/")
	if len(segments) != 6 || segments[1] != cachev1alpha1.SchemeGroupVersion.Group || segments[2] != apis.CachedResources && segments[2] != apis.ClusterCachedResources {
		return
	}
	kind := c.read(key, after)
	if kind != nil {
		kind.shard, kind.cluster = segments[3], segments[4]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.at
	if c.reading != nil {
		at = c.reading
	}
	before := at[key]
	if kind == nil {
		delete(at, key)
	} else {
		at[key] = kind
	}
	if c.reading == nil {
		c.replaceLocked(before, kind)
	}
}

// read returns the resource that a CachedResource replicates, or nil if it is deleted or has not specified one yet.
func (c *cachedKinds) read(key string, value []byte) *cachedKind {
	if value == nil {
		return nil
	}
	var cached cachev1alpha1.CachedResource
	plain, err := c.decrypt(key, value)
	if err == nil {
		err = utiljson.Unmarshal(plain, &cached)
	}
	if err != nil {
		klog.InfoS("A cached resource cannot be read", "key", key, "err", err)
		return &cachedKind{}
	}
	kind := cached.Annotations[apis.CachedKindAnnotation]
	if kind == "" || cached.Annotations[apis.CachedScopeAnnotation] != string(apiextensionsv1.ClusterScoped) || !request.ValidIdentity(cached.Status.IdentityHash) {
		return nil
	}
	return &cachedKind{kind: kind, cachedAs: cachedAs{
		GroupVersionResource: apis.CachedResourceOf(&cached), identity: cached.Status.IdentityHash,
	}}
}

// replaceLocked replaces a resource, which is served without interruption if its kind is the same.
func (c *cachedKinds) replaceLocked(before, kind *cachedKind) {
	if before != nil && kind != nil && before.kind != kind.kind {
		c.removeLocked(before)
		before = nil
	}
	c.addLocked(kind)
	c.removeLocked(before)
}

func (c *cachedKinds) addLocked(kind *cachedKind) {
	if kind == nil || kind.kind == "" {
		return
	}
	served := c.served[kind.cachedAs]
	if served == nil {
		as, err := customresource.OpaqueSchema(kind.GroupVersionResource, kind.kind)
		if err != nil {
			klog.InfoS("Failed to serve the objects of a CachedResource", "shard", kind.shard, "logicalCluster", kind.cluster, "resource", kind.GroupVersionResource.String(), "err", err)
			return
		}
		served = &servedKind{definition: &definitions.Definition{Schema: as, Identity: kind.identity}}
		c.served[kind.cachedAs] = served
	}
	served.users++
}

func (c *cachedKinds) removeLocked(kind *cachedKind) {
	if kind == nil {
		return
	}
	served := c.served[kind.cachedAs]
	if served == nil {
		return
	}
	if served.users--; served.users == 0 {
		delete(c.served, kind.cachedAs)
		c.listeners.Notify(definitions.Change{Schema: served.definition.Schema, Identity: kind.identity, Removed: true})
	}
}

// have reports whether replicas may belong to a CachedResource: one of their shard selects them, or cannot be decoded,
// or the resync is not complete.
func (c *cachedKinds) have(of replicas) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, kind := range c.at {
		as := apis.Identified(kind.GroupVersionResource, kind.identity).GroupResource()
		if kind.shard == of.shard && (kind.kind == "" || as.String() == of.resource) {
			return true
		}
	}
	return c.at == nil
}

var _ definitions.Source = (*cachedKinds)(nil)

// Resolve implements definitions.Source. For all logical clusters, the request contains an identity. One logical cluster
// has one definition per resource and version.
func (c *cachedKinds) Resolve(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.at == nil {
		return nil, apierrors.NewTooManyRequests("not all CachedResources are loaded yet, try again", 1)
	}
	if l.Identity != "" {
		if served := c.served[cachedAs{l.Resource.WithVersion(l.Version), l.Identity}]; served != nil {
			return served.definition, nil
		}
		return nil, nil //nolint:nilnil // not found
	}
	for _, kind := range c.in(ctx, l.Cluster) {
		if kind.Version == l.Version && kind.GroupResource() == l.Resource && c.served[kind.cachedAs] != nil {
			return c.served[kind.cachedAs].definition, nil
		}
	}
	return nil, nil //nolint:nilnil // not found
}

// in returns the resources of a logical cluster in a stable order, under the lock.
func (c *cachedKinds) in(ctx context.Context, cluster request.Cluster) []*cachedKind {
	shard, _ := request.ShardFrom(ctx)
	if cluster.Wildcard {
		return nil
	}
	var all []*cachedKind
	for _, kind := range c.at {
		if kind.cluster == cluster.Name.String() && (shard.Wildcard || kind.shard == shard.Name) {
			all = append(all, kind)
		}
	}
	slices.SortFunc(all, func(a, b *cachedKind) int {
		return strings.Compare(a.String()+a.identity, b.String()+b.identity)
	})
	return all
}

func (*cachedKinds) Read(context.Context, definitions.Lookup) (*definitions.Definition, error) {
	return nil, nil //nolint:nilnil // no other server adds definitions
}

func (c *cachedKinds) List(ctx context.Context, cluster request.Cluster) ([]*definitions.Definition, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var all []*definitions.Definition
	for _, kind := range c.in(ctx, cluster) {
		if served := c.served[kind.cachedAs]; served != nil {
			all = append(all, served.definition)
		}
	}
	return all, nil
}

func (c *cachedKinds) Subscribe(f func(definitions.Change)) (stop func()) { return c.listeners.Add(f) }
