package request

import (
	"context"
	"errors"
	"fmt"

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
	VirtualWorkspace *VirtualWorkspace
	// Refusal is the answer to a request that nothing in its scope serves. It is
	// given after authorization.
	Refusal error

	// What follows is about the resource that is requested. Work for other resources or
	// logical clusters needs a context of its own (WithCluster).

	// selector is the part of the objects that is requested.
	selector sharding.Selector
	// identity is the API whose objects are requested, and the resource they are stored as.
	identity struct {
		resource schema.GroupResource
		hash     string
	}
	// provider is the logical cluster that defines the resource for others.
	provider logicalcluster.Name
	// restriction is what the objects are restricted to.
	restriction Restriction
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

// WithIdentity returns a context whose requests to the storage of the resource
// are for the objects of the API with that identity: APIs of the same
// group and resource that were exported by different providers keep their objects
// apart. The empty identity is that of objects that no export defines. With any other, the
// context leads to no other storage (CheckStorage).
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

// WithProvider returns a context for a request for a resource that another logical cluster
// defines, whose webhooks and policies judge it, and whose webhooks convert it.
func WithProvider(ctx context.Context, provider logicalcluster.Name) context.Context {
	s := ScopeFrom(ctx)
	s.provider = provider
	return WithScope(ctx, s)
}

// ProviderFrom returns the logical cluster that defines the requested resource for that of
// ctx, or "" if the latter does so itself.
func ProviderFrom(ctx context.Context) logicalcluster.Name { return scopeFrom(ctx).provider }

// Restriction is what a request is restricted to. Only storage can interpret it.
type Restriction interface {
	// Resource is the resource as it is stored, which may have another group than the
	// requested one.
	Resource() schema.GroupResource
}

// View is through what a request reaches the content of other logical clusters than the
// one that it is for.
type VirtualWorkspace struct {
	// Name is the name of the object that grants the view, in the logical cluster that
	// the request is for. The mount says of which kind; of some, none does.
	Name string
	// In is the logical cluster whose content is seen, or all that may be seen. It is
	// zero where the path that the client wrote leads to none.
	In Cluster
}

// ViewFrom returns the view that a request is to enter, or nil.
func VirtualWorkspaceFrom(ctx context.Context) *VirtualWorkspace {
	return scopeFrom(ctx).VirtualWorkspace
}

// Through is the view that a request has entered: it goes on in another logical cluster
// than the one that has granted the view.
type Through struct {
	// Mount says of which kind the view is.
	Mount *Mount
	// Provider is the logical cluster that has granted it, by the object View.
	Provider         logicalcluster.Name
	VirtualWorkspace string
	// Unrestricted must be set if the request may see all objects of Cluster in storage.
	// Otherwise it needs an identity or a restriction (CheckStorage).
	Unrestricted bool
}

// WithThrough returns a context for what goes on through a view.
func WithThrough(ctx context.Context, t Through) context.Context {
	s := ScopeFrom(ctx)
	s.through = t
	return WithScope(ctx, s)
}

// ThroughFrom returns the view that a request has entered, and whether it has.
func ThroughFrom(ctx context.Context) (Through, bool) {
	t := scopeFrom(ctx).through
	return t, t.Mount != nil
}

// WithRestriction returns a context whose requests see what by contains, and which leads to
// no other storage than that of its resource (CheckStorage). Use WithSet of the storage's
// claims.
func WithRestriction(ctx context.Context, by Restriction) context.Context {
	s := ScopeFrom(ctx)
	s.restriction = by
	return WithScope(ctx, s)
}

// RestrictionFrom returns what requests are restricted to, or nil.
func RestrictionFrom(ctx context.Context) Restriction { return scopeFrom(ctx).restriction }

// CheckStorage returns an error if a request that has reached the storage of a resource would
// see more there than it may: its identity or restriction is for another resource, or it came
// through a virtual workspace that had to provide one and did not. Otherwise a mistake on the
// way to storage would not be noticed, because requests without a restriction see everything.
func CheckStorage(ctx context.Context, resource schema.GroupResource) error {
	s := scopeFrom(ctx)
	identified := s.identity.hash != ""
	switch {
	case identified && s.identity.resource != resource:
		return fmt.Errorf("a request for %s with an identity reached the storage of %s", s.identity.resource, resource)
	case s.restriction != nil && s.restriction.Resource() != resource:
		return fmt.Errorf("a request that is restricted to some %s reached the storage of %s", s.restriction.Resource(), resource)
	case s.through.Mount != nil && !s.through.Unrestricted && !identified && s.restriction == nil:
		return fmt.Errorf("a request through a virtual workspace (%s) reached the storage of %s without an identity or a restriction", s.through.Mount.Prefix, resource)
	default:
		return nil
	}
}

// WithShardSelector returns a context whose lists and watches are for the part of the
// objects that the selector (KEP-5866) selects. It brings a selector that is parsed already
// past upstream's registry, which parses what is in the query, for each request anew.
func WithShardSelector(ctx context.Context, selector sharding.Selector) context.Context {
	s := ScopeFrom(ctx)
	s.selector = selector
	return WithScope(ctx, s)
}

// ShardSelectorFrom returns the selector for lists and watches, or nil.
func ShardSelectorFrom(ctx context.Context) sharding.Selector { return scopeFrom(ctx).selector }
