package request

import (
	"net/http"
	"net/url"
)

// AdminPath is below which any shard serves what is of the whole installation.
const AdminPath = ServicesPrefix + "admin"

// Admin is /services/admin/apis/core.kcp.io/v1alpha1/shards: what is of the whole installation,
// and of no logical cluster.
var Admin = &Mount{
	Prefix: AdminPath + "/", Form: AdminPath, Whole: true,
	Parse:    func(below string) (Location, error) { return Location{Rest: "/" + below}, nil },
	Wildcard: listOrWatchOrRead,
}

// ShardMounts is the table of shards, and of front-proxies, which lead to them.
func ShardMounts() []*Mount { return append([]*Mount{Clusters, Admin}, VirtualWorkspaceMounts()...) }

// CacheMounts is the table of cache servers.
func CacheMounts() []*Mount { return []*Mount{CacheShards, Shards} }

// Scope returns the scope of l. known is false where there is a path that first
// has to be resolved, or no logical cluster at all.
func (l Location) Scope() (s Scope, known bool) {
	s = Scope{Mount: l.Mount, Shard: l.Shard, Cluster: Cluster{Wildcard: l.Wildcard}}
	if l.VirtualWorkspace != nil {
		s.VirtualWorkspace = l.VirtualWorkspace.scope()
	}
	if l.Wildcard {
		return s, true
	}
	name, ok := l.Path.Name()
	if !ok || name == "" {
		return s, false
	}
	s.Cluster.Name = name
	return s, true
}

// Scoped returns r with scope s and path rest, as what is behind the filters of
// a server sees it. r stays as it is.
func Scoped(r *http.Request, s Scope, rest string) *http.Request {
	scoped := r.WithContext(WithScope(r.Context(), s))
	scoped.URL = new(url.URL)
	*scoped.URL = *r.URL
	scoped.URL.Path, scoped.URL.RawPath = rest, ""
	return scoped
}
