package request

import (
	"context"
	"errors"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"
)

// ErrNoCluster says that a request that needs a logical cluster has none in
// its context.
var ErrNoCluster = errors.New("no logical cluster in the request: use a URL of the form /clusters/<name>/…")

// ErrWildcard says that a request names all logical clusters where it must
// name one.
var ErrWildcard = errors.New("the request is for all logical clusters (*), but it must name one")

// Cluster is the logical cluster that a request is for: one by name, or all
// logical clusters of the shard.
type Cluster struct {
	// Name is the resolved name; empty if and only if Wildcard is set.
	Name logicalcluster.Name
	// Wildcard is set for requests below /clusters/*.
	Wildcard bool
}

// String returns the name, or "*" for the wildcard.
func (c Cluster) String() string {
	if c.Wildcard {
		return Wildcard
	}
	return c.Name.String()
}

// Shard is the shard segment of a request to the cache server: one shard by
// name, or all of them. Requests to other servers have none.
type Shard struct {
	// Name is the shard's name; empty if and only if Wildcard is set.
	Name string
	// Wildcard is set for requests below /shards/*.
	Wildcard bool
}

// String returns the name, or "*" for the wildcard.
func (s Shard) String() string {
	if s.Wildcard {
		return Wildcard
	}
	return s.Name
}

// Scope is what a request is for. One that is zero is about the serving process.
// It is a value: what changes it for a part of a request's work makes another
// context with it.
type Scope struct {
	// Mount is the part of the server's URLs that the request came by.
	Mount *Mount
	// Shard is set at a cache server only.
	Shard Shard
	// Cluster is the logical cluster, or all.
	Cluster Cluster
	// Nowhere is set instead of Cluster where the path that the client wrote
	// leads to no logical cluster, as far as the server knows.
	Nowhere logicalcluster.Path
	// View is set where the request is to reach the content of other logical clusters
	// through a view. Cluster is then the one that grants the view, which decides about
	// the request and which it is counted for, until it enters the view.
	View *View
	// Refusal is the answer to a request that nothing in its scope serves. It is
	// given after authorization.
	Refusal error

	// selector is which part of the objects of one resource it is for.
	selector struct {
		resource string
		sharding.Selector
	}
	// identity is which API's objects of one resource it is for.
	identity struct {
		resource schema.GroupResource
		hash     string
	}
	// provider is the logical cluster that defines one resource for others.
	provider struct {
		resource schema.GroupResource
		name     logicalcluster.Name
	}
	// restriction is what else the objects of one resource are restricted by.
	restriction struct {
		resource schema.GroupResource
		by       any
	}
	// through is the view that it came through.
	through Through
	// merged is set where a front-proxy merges the answer with those of other shards.
	merged bool
	// entered is called when it turns out that the sender may enter.
	entered func()
}

type scopeKey struct{}

// WithScope returns a context that carries s.
func WithScope(ctx context.Context, s Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, &s)
}

// ScopeFrom returns the scope of ctx, which is zero where it has none.
func ScopeFrom(ctx context.Context) Scope { return *scopeFrom(ctx) }

var noScope = &Scope{}

// scopeFrom returns what nobody may change.
func scopeFrom(ctx context.Context) *Scope {
	if s, ok := ctx.Value(scopeKey{}).(*Scope); ok {
		return s
	}
	return noScope
}

// WithCluster returns a context for c, of the same shard as ctx.
func WithCluster(ctx context.Context, c Cluster) context.Context {
	return WithScope(ctx, Scope{Shard: scopeFrom(ctx).Shard, Cluster: c})
}

// WithClusterName returns a context for the one logical cluster name.
func WithClusterName(ctx context.Context, name logicalcluster.Name) context.Context {
	return WithCluster(ctx, Cluster{Name: name})
}

// WithWildcard returns a context for all logical clusters of the shard.
func WithWildcard(ctx context.Context) context.Context {
	return WithCluster(ctx, Cluster{Wildcard: true})
}

// ClusterFrom returns the logical cluster of ctx, and whether there is one.
func ClusterFrom(ctx context.Context) (Cluster, bool) {
	c := scopeFrom(ctx).Cluster
	return c, c.Wildcard || c.Name != ""
}

// ClusterNameFrom returns the one logical cluster that ctx names. It fails with
// ErrNoCluster where there is none and with ErrWildcard for the wildcard.
func ClusterNameFrom(ctx context.Context) (logicalcluster.Name, error) {
	c, ok := ClusterFrom(ctx)
	switch {
	case !ok:
		return "", ErrNoCluster
	case c.Wildcard:
		return "", ErrWildcard
	default:
		return c.Name, nil
	}
}

// NowhereFrom returns the path of ctx that leads to no logical cluster, and
// whether there is one. A request with neither a logical cluster nor such a
// path is about the serving process.
func NowhereFrom(ctx context.Context) (logicalcluster.Path, bool) {
	path := scopeFrom(ctx).Nowhere
	return path, !path.Empty()
}

// ShardFrom returns the shard segment of ctx, and whether there is one.
func ShardFrom(ctx context.Context) (Shard, bool) {
	s := scopeFrom(ctx).Shard
	return s, s.Wildcard || s.Name != ""
}

// WithIdentity returns a context whose requests to the storage of the resource, and
// of no other, are for the objects of the API with that identity: APIs of the same
// group and resource that were exported by different providers keep their objects
// apart. The empty identity is that of objects that no export defines.
func WithIdentity(ctx context.Context, resource schema.GroupResource, hash string) context.Context {
	s := ScopeFrom(ctx)
	s.identity.resource, s.identity.hash = resource, hash
	return WithScope(ctx, s)
}

// IdentityFrom returns the identity for requests to the storage of the resource.
func IdentityFrom(ctx context.Context, resource schema.GroupResource) string {
	if s := scopeFrom(ctx); s.identity.resource == resource {
		return s.identity.hash
	}
	return ""
}

// WithProvider returns a context that tells of the resource, and of no other, that it is
// defined by another logical cluster: whose webhooks and policies judge it, and whose
// webhooks convert it.
func WithProvider(ctx context.Context, resource schema.GroupResource, provider logicalcluster.Name) context.Context {
	s := ScopeFrom(ctx)
	s.provider.resource, s.provider.name = resource, provider
	return WithScope(ctx, s)
}

// ProviderFrom returns the logical cluster that defines the resource for that of ctx, or
// "" if that does it itself.
func ProviderFrom(ctx context.Context, resource schema.GroupResource) logicalcluster.Name {
	if s := scopeFrom(ctx); s.provider.resource == resource {
		return s.provider.name
	}
	return ""
}

// WithRestriction returns a context whose requests to the storage of the resource, and
// of no other, see what by says, which the storage knows the meaning of. Use WithSet of
// the storage's claims.
func WithRestriction(ctx context.Context, resource schema.GroupResource, by any) context.Context {
	s := ScopeFrom(ctx)
	s.restriction.resource, s.restriction.by = resource, by
	return WithScope(ctx, s)
}

// RestrictionFrom returns what requests to the storage of the resource are restricted
// by, or nil.
func RestrictionFrom(ctx context.Context, resource schema.GroupResource) any {
	if s := scopeFrom(ctx); s.restriction.resource == resource {
		return s.restriction.by
	}
	return nil
}

// WithShardSelector returns a context whose lists and watches of the resource,
// and of no other, are for the part of the objects that the selector (KEP-5866)
// selects. It brings a selector that is parsed already past upstream's registry,
// which parses what is in the query, for each request anew. The resource has no
// group: one storage may serve two.
func WithShardSelector(ctx context.Context, resource string, selector sharding.Selector) context.Context {
	s := ScopeFrom(ctx)
	s.selector.resource, s.selector.Selector = resource, selector
	return WithScope(ctx, s)
}

// ShardSelectorFrom returns the selector for lists and watches of the resource,
// or nil.
func ShardSelectorFrom(ctx context.Context, resource string) sharding.Selector {
	if s := scopeFrom(ctx); s.selector.resource == resource {
		return s.selector.Selector
	}
	return nil
}
