package cacheserver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/filters"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestScopeFilter: which names are valid is a matter of pkg/request.
func TestScopeFilter(t *testing.T) {
	t.Parallel()
	type passed struct{ shard, cluster, path string }
	tests := []struct {
		path   string
		status int
		passed passed
	}{
		{path: "/services/cache/shards/amber/clusters/root/apis/g/v1/things", passed: passed{"amber", "root", "/apis/g/v1/things"}},
		{path: "/services/cache/shards/*/clusters/*/apis/g/v1/things", passed: passed{"*", "*", "/apis/g/v1/things"}},
		{path: "/services/cache/shards/amber/clusters/root", passed: passed{"amber", "root", "/"}},
		{path: "/services/cache/shards/amber/clusters/root/version", passed: passed{"amber", "root", "/version"}},
		{path: "/healthz", passed: passed{"*none*", "*none*", "/healthz"}},
		{path: "/metrics", passed: passed{"*none*", "*none*", "/metrics"}},
		{path: "/version", passed: passed{"*none*", "*none*", "/version"}},

		{path: "/", status: 400},
		{path: "/services/cache/shards/amber/clusters/root/apis/%ff", status: 400},
		{path: "/apis/g/v1/things", status: 400},
		{path: "/clusters/root/apis/g/v1/things", status: 400},
		{path: "/services/cache", status: 400},
		{path: "/services/cache/shards//clusters/root/apis", status: 400},
		{path: "/services/cache/shards/amber", status: 400},
		{path: "/services/cache/shards/amber/apis", status: 400},
		{path: "/services/cache/shards/amber/clusters//apis", status: 400},
		{path: "/services/cache/shards/amber/clusters/root:org/apis", status: 400},

		{path: "/services/cache/shards/amber/metrics", status: 501},
		{path: "/services/cache/shards/amber/clusters/root/metrics", status: 501},
		{path: "/services/cache/shards/*/clusters/*/debug/pprof", status: 501},
		{path: "/shards/amber/clusters/root/metrics", status: 501},
	}
	infos := &genericrequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			var got *passed
			handler := scopes.Find(filters.WithRequestInfo(scopes.Rules(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				got = &passed{"*none*", "*none*", req.URL.Path}
				if s, ok := request.ShardFrom(req.Context()); ok {
					got.shard = s.String()
				}
				if c, ok := request.ClusterFrom(req.Context()); ok {
					got.cluster = c.String()
				}
			})), infos))
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tt.path, http.NoBody)
			path := req.URL.Path
			rec := httptest.NewRecorder()
			handler.ServeHTTP(rec, req)

			require.Equal(t, path, req.URL.Path, "the caller's request must not change")
			if tt.status != 0 {
				require.Nil(t, got, "the request must not pass")
				require.Equal(t, tt.status, rec.Code, rec.Body.String())
				return
			}
			require.NotNil(t, got, "%d: %s", rec.Code, rec.Body.String())
			require.Equal(t, tt.passed, *got)
		})
	}
}

func TestWildcardVerbs(t *testing.T) {
	t.Parallel()
	one, all := request.Shard{Name: "amber"}, request.Shard{Wildcard: true}
	root, every := request.Cluster{Name: "root"}, request.Cluster{Wildcard: true}
	tests := []struct {
		name    string
		shard   request.Shard
		cluster request.Cluster
		info    genericrequest.RequestInfo
		pass    bool
	}{
		{"create in one", one, root, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "create"}, true},
		{"list all", all, every, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "list"}, true},
		{"watch one cluster of all shards", all, root, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "watch"}, true},
		{"discovery", all, every, genericrequest.RequestInfo{Verb: "get", Path: "/apis"}, true},
		{"get", all, every, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "get"}, false},
		{"get of all shards", all, root, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "get"}, false},
		{"create of all clusters", one, every, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "create"}, false},
		{"deletecollection", all, every, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "deletecollection"}, false},
		{"delete", all, root, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "delete"}, false},
		{"update", one, every, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "update"}, false},
		{"patch", all, every, genericrequest.RequestInfo{IsResourceRequest: true, Verb: "patch"}, false},
		{"post to discovery", all, every, genericrequest.RequestInfo{Verb: "post", Path: "/apis"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			passed := false
			handler := scopes.Rules(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true }))
			ctx := request.WithScope(t.Context(), request.Scope{Mount: request.CacheShards, Shard: tt.shard, Cluster: tt.cluster})
			ctx = genericrequest.WithRequestInfo(ctx, &tt.info)
			rec := httptest.NewRecorder()
			handler.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
			require.Equal(t, tt.pass, passed)
			if !tt.pass {
				require.Equal(t, http.StatusMethodNotAllowed, rec.Code)
				require.Contains(t, rec.Body.String(), tt.info.Verb)
			}
		})
	}
}
