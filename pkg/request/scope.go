package request

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"
)

// ErrNoCluster is returned if the context has no logical cluster.
var ErrNoCluster = errors.New("no logical cluster in the request: use a URL of the form /clusters/<name>/…")

// ErrWildcard is returned if a request for one logical cluster specifies all of them.
var ErrWildcard = errors.New("the request is for all logical clusters (*), but must specify one")

// Scope is the target of a request. The zero Scope is the serving process. It is immutable: changes
// for a part of the request require another context.
type Scope struct {
	// Mount is the URL prefix of the request.
	Mount *Mount
	// Shard is only set at a cache server.
	Shard   Shard
	Cluster Cluster
	// UnresolvedPath is set instead of Cluster if the path of the request cannot be resolved.
	UnresolvedPath logicalcluster.Path
	// VirtualWorkspace is set for requests to other logical clusters through a virtual workspace. Cluster is then
	// the one that grants access, authorizes the request and is charged for it.
	VirtualWorkspace *VirtualWorkspace
	// Refusal is the response if nothing in the scope serves the request. It is returned after authorization.
	Refusal error

	// The remaining fields depend on the resource. Work for others needs its own context (WithCluster).

	selector sharding.Selector
	identity struct {
		resource schema.GroupResource
		hash     string
	}
	provider    logicalcluster.Name
	restriction Restriction
	through     Through
	// merged is set if a front-proxy merges the response with those of other shards.
	merged bool
	// accessAuthorized is called when the user is authorized for the logical cluster.
	accessAuthorized func()
}

type scopeKey struct{}

// WithScope returns a context with scope s.
func WithScope(ctx context.Context, s Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, &s)
}

// with returns a context with a changed copy of the scope of ctx.
func with(ctx context.Context, change func(s *Scope)) context.Context {
	s := ScopeFrom(ctx)
	change(&s)
	return context.WithValue(ctx, scopeKey{}, &s)
}

// ScopeFrom returns the scope of ctx, which may be zero.
func ScopeFrom(ctx context.Context) Scope { return *scopeFrom(ctx) }

var noScope = &Scope{}

// scopeFrom returns the scope of ctx, which must not be changed.
func scopeFrom(ctx context.Context) *Scope {
	if s, ok := ctx.Value(scopeKey{}).(*Scope); ok {
		return s
	}
	return noScope
}

// WithCluster returns a context for c, with the shard of ctx.
func WithCluster(ctx context.Context, c Cluster) context.Context {
	return WithScope(ctx, Scope{Shard: scopeFrom(ctx).Shard, Cluster: c})
}

// WithClusterName returns a context for one logical cluster.
func WithClusterName(ctx context.Context, name logicalcluster.Name) context.Context {
	return WithCluster(ctx, Cluster{Name: name})
}

// WithWildcard returns a context for all logical clusters of the shard.
func WithWildcard(ctx context.Context) context.Context {
	return WithCluster(ctx, Cluster{Wildcard: true})
}

// ClusterFrom returns the logical cluster of ctx, if any.
func ClusterFrom(ctx context.Context) (Cluster, bool) {
	c := scopeFrom(ctx).Cluster
	return c, c.Wildcard || c.Name != ""
}

// ClusterNameFrom returns the name of the logical cluster of ctx, or ErrNoCluster, or ErrWildcard.
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

// UnresolvedPathFrom returns the path of ctx that cannot be resolved, if any.
func UnresolvedPathFrom(ctx context.Context) (logicalcluster.Path, bool) {
	path := scopeFrom(ctx).UnresolvedPath
	return path, !path.Empty()
}

// ShardFrom returns the shard of ctx, if any.
func ShardFrom(ctx context.Context) (Shard, bool) {
	s := scopeFrom(ctx).Shard
	return s, s.Wildcard || s.Name != ""
}

// WithIdentity returns a context for objects of the API with an identity. APIs with the same group and resource from
// different providers are stored separately. The empty identity is for objects that no export defines. With any
// other one, the context must not be used for other storage (CheckStorage).
func WithIdentity(ctx context.Context, resource schema.GroupResource, hash string) context.Context {
	return with(ctx, func(s *Scope) { s.identity.resource, s.identity.hash = resource, hash })
}

// IdentityFrom returns the identity for requests to the storage of a resource.
func IdentityFrom(ctx context.Context, resource schema.GroupResource) string {
	if s := scopeFrom(ctx); s.identity.resource == resource {
		return s.identity.hash
	}
	return ""
}

// WithProvider returns a context for a resource of another logical cluster, whose webhooks and policies apply.
func WithProvider(ctx context.Context, provider logicalcluster.Name) context.Context {
	return with(ctx, func(s *Scope) { s.provider = provider })
}

// ProviderFrom returns the logical cluster that defines the resource, or "" if it is the logical
// cluster of ctx.
func ProviderFrom(ctx context.Context) logicalcluster.Name { return scopeFrom(ctx).provider }

// Restriction restricts the objects of a request. It is interpreted by the storage.
type Restriction interface {
	// Resource is the stored resource. Its group may differ from the requested one.
	Resource() schema.GroupResource
}

// VirtualWorkspace is a virtual workspace, through which requests reach objects of other logical clusters.
type VirtualWorkspace struct {
	// Name is the object that grants access, in the logical cluster of the request. The mount determines
	// its kind. It is empty if there is no such object.
	Name string
	// In is the logical cluster of the objects, or all accessible ones. It is zero if its path cannot be resolved.
	In Cluster
}

// VirtualWorkspaceFrom returns the virtual workspace of ctx, or nil.
func VirtualWorkspaceFrom(ctx context.Context) *VirtualWorkspace {
	return scopeFrom(ctx).VirtualWorkspace
}

// Through is the virtual workspace through which a request has reached another logical cluster.
type Through struct {
	Mount *Mount
	// Provider is the logical cluster that grants access, by the object VirtualWorkspace.
	Provider         logicalcluster.Name
	VirtualWorkspace string
	// Unrestricted is set if the request may access all objects of Cluster in storage. Otherwise it needs
	// an identity or a restriction (CheckStorage).
	Unrestricted bool
}

// WithThrough returns a context for a request that has passed through a virtual workspace.
func WithThrough(ctx context.Context, t Through) context.Context {
	return with(ctx, func(s *Scope) { s.through = t })
}

// ThroughFrom returns the virtual workspace through which a request has passed, if any.
func ThroughFrom(ctx context.Context) (Through, bool) {
	t := scopeFrom(ctx).through
	return t, t.Mount != nil
}

// WithRestriction returns a context that is restricted to the objects of by (CheckStorage).
func WithRestriction(ctx context.Context, by Restriction) context.Context {
	return with(ctx, func(s *Scope) { s.restriction = by })
}

// RestrictionFrom returns the restriction of ctx, or nil.
func RestrictionFrom(ctx context.Context) Restriction { return scopeFrom(ctx).restriction }

// CheckStorage returns an error if the identity or restriction of a request is for another resource, or if it has
// passed through a virtual workspace without either. This detects errors in the layers above, because requests
// without a restriction can access all objects.
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

// WithShardSelector returns a context for lists and watches of a part of the objects (KEP-5866). It passes the
// parsed selector to the storage, because upstream's registry would parse the query again for each request.
func WithShardSelector(ctx context.Context, selector sharding.Selector) context.Context {
	return with(ctx, func(s *Scope) { s.selector = selector })
}

// ShardSelectorFrom returns the selector for lists and watches, or nil.
func ShardSelectorFrom(ctx context.Context) sharding.Selector { return scopeFrom(ctx).selector }

const (
	// InternalHeaderPrefix is the prefix of headers that components of an installation send to each
	// other. Front-proxies remove them from client requests.
	InternalHeaderPrefix = "X-Kcp-Internal-"

	// AccessAuthorizedHeader reports in each response of a shard whether the user was authorized
	// for the logical cluster: "true" or "false". The front-proxy removes it. Without
	// authorization, a response must not disclose that the logical cluster exists.
	AccessAuthorizedHeader = InternalHeaderPrefix + "Access-Authorized"

	// ReadyTimeoutHeader specifies, in a forwarded request, how long the shard should wait until a
	// new logical cluster is ready, e.g. 9.5s.
	ReadyTimeoutHeader = InternalHeaderPrefix + "Ready-Timeout"

	// MergedHeader is "true" in a request for all logical clusters if a front-proxy merges the
	// responses of all shards for an administrator.
	MergedHeader = InternalHeaderPrefix + "Merged"

	// DataHeader contains, in a list or watch of a front-proxy, the data epoch of its resourceVersion, or is empty
	// if it has none. In the response, it contains the current data epoch.
	DataHeader = InternalHeaderPrefix + "Data"
)

// OnAccessAuthorized returns a context for which notify is called when the user is authorized for the logical
// cluster, but not for derived contexts of other logical clusters.
func OnAccessAuthorized(ctx context.Context, notify func()) context.Context {
	return with(ctx, func(s *Scope) { s.accessAuthorized = notify })
}

// AccessAuthorized reports that the user is authorized for the logical cluster of ctx. Authorizers call it, possibly
// several times, before they authorize the request itself.
func AccessAuthorized(ctx context.Context) {
	if s := scopeFrom(ctx); s.accessAuthorized != nil {
		s.accessAuthorized()
	}
}

// WithMerged returns a context of a request for a response that a front-proxy merges with those of other shards.
func WithMerged(ctx context.Context) context.Context {
	return with(ctx, func(s *Scope) { s.merged = true })
}

// IsMerged reports whether a front-proxy merges the response with those of other shards.
func IsMerged(ctx context.Context) bool { return scopeFrom(ctx).merged }

type pauseKey struct{}

// WithPause returns a context of a request with a seat. pause releases the seat until resume is called, which may
// block. Both may be called concurrently.
func WithPause(ctx context.Context, pause func() (resume func())) context.Context {
	return context.WithValue(ctx, pauseKey{}, pause)
}

// Pause releases the seat of the request of ctx while it waits for another party, e.g. the webhook of a tenant,
// which may itself send requests. The caller must call resume before it continues, and must then not hold locks that
// requests with a seat wait for.
func Pause(ctx context.Context) (resume func()) {
	pause, ok := ctx.Value(pauseKey{}).(func() (resume func()))
	if !ok {
		return func() {}
	}
	return pause()
}

// Scope returns the scope of l. known is false if its path must be resolved first, or if it has no logical cluster.
func (l Location) Scope() (s Scope, known bool) {
	s = Scope{Mount: l.Mount, Shard: l.Shard, Cluster: Cluster{Wildcard: l.Wildcard}}
	if v := l.VirtualWorkspace; v != nil {
		// In has no logical cluster if its path must be resolved first.
		s.VirtualWorkspace = &VirtualWorkspace{Name: v.Name, In: Cluster{Wildcard: v.Wildcard}}
		s.VirtualWorkspace.In.Name, _ = v.Path.Name()
	}
	s.Cluster.Name, _ = l.Path.Name()
	return s, l.Wildcard || s.Cluster.Name != ""
}

// Scoped returns a copy of r with scope s and path rest.
func Scoped(r *http.Request, s Scope, rest string) *http.Request {
	scoped := r.WithContext(WithScope(r.Context(), s))
	scoped.URL = new(url.URL)
	*scoped.URL = *r.URL
	scoped.URL.Path, scoped.URL.RawPath = rest, ""
	return scoped
}
