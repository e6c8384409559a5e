package request_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

// location is the expected location of a URL, or of one that is not below a mount if rest is empty.
type location struct {
	url, shard, path, rest string
	wildcard               bool
}

func requireLocations(t *testing.T, mounts []*request.Mount, want []location, invalid []string) {
	t.Helper()
	for _, tc := range want {
		l, found, err := request.Locate(tc.url, mounts...)
		require.NoError(t, err, tc.url)
		require.Equal(t, tc.rest != "", found, tc.url)
		got := location{tc.url, l.Shard.String(), l.Path.String(), l.Rest, l.Wildcard}
		require.Equal(t, tc, got)
	}
	for _, url := range invalid {
		_, found, err := request.Locate(url, mounts...)
		require.True(t, found, url)
		var invalid *request.InvalidURLError
		require.ErrorAs(t, err, &invalid, url)
	}
}

func TestClusters(t *testing.T) {
	requireLocations(t, []*request.Mount{request.Clusters}, []location{
		{url: "/api/v1/namespaces"},
		{url: "/clusters"},
		{url: "/clustersx/root/api"},
		{url: "/clusters/root", path: "root", rest: "/"},
		{url: "/clusters/root/", path: "root", rest: "/"},
		{url: "/clusters/root/api/v1", path: "root", rest: "/api/v1"},
		{url: "/clusters/root:org:team/apis", path: "root:org:team", rest: "/apis"},
		{url: "/clusters/system:admin/apis", path: "system:admin", rest: "/apis"},
		{url: "/clusters/*/api/v1/configmaps", wildcard: true, rest: "/api/v1/configmaps"},
		{url: "/clusters/a1/clusters/b1", path: "a1", rest: "/clusters/b1"},
	}, []string{
		"/clusters//api", "/clusters/", "/clusters/Root/api", "/clusters/../api", "/clusters/root:/api",
		"/clusters/:root/api", "/clusters/root::x/api", "/clusters/system:../api", "/clusters/ro%6ft/api",
		"/clusters/**/api", "/clusters/ro ot/api", "/clusters/ro\x00ot/api",
	})
}

func TestShards(t *testing.T) {
	requireLocations(t, request.CacheMounts(), []location{
		{url: "/shards/root/clusters/*/apis", shard: "root", wildcard: true, rest: "/apis"},
		{url: "/shards/*/clusters/root", shard: "*", path: "root", rest: "/"},
		{url: "/services/cache/shards/amber/clusters/root/apis", shard: "amber", path: "root", rest: "/apis"},
		{url: "/services/cache/shards/*/clusters/*/apis/g/v1/things", shard: "*", wildcard: true, rest: "/apis/g/v1/things"},
		{url: "/services/cache/shards/amber/clusters/system:shard/apis", shard: "amber", path: "system:shard", rest: "/apis"},
		{url: "/services/cache/shards/amber/metrics", shard: "amber", rest: "/metrics"},
		{url: "/services/cache/shards/amber", shard: "amber", rest: "/"},
		{url: "/clusters/root"},
		{url: "/services/cache/clusters/root"},
		{url: "/services/cacheshards/a/clusters/root"},
	}, []string{
		"/shards//x", "/shards/../x", "/shards/A/x", "/shards/a:b/x", "/shards/system:x/y", "/shards/**/clusters/root",
		"/shards/a/clusters//apis", "/shards/a/clusters/system:a:b/apis",
	})
}

// TestScopeOfLocation checks that names become scopes, and that paths must be resolved.
func TestScopeOfLocation(t *testing.T) {
	for url, want := range map[string]request.Cluster{
		"/clusters/root/api":         {Name: "root"},
		"/clusters/system:admin/api": {Name: "system:admin"},
		"/clusters/*/api":            {Wildcard: true},
		"/clusters/root:team/api":    {},
	} {
		l, found, err := request.Locate(url, request.Clusters)
		require.NoError(t, err)
		require.True(t, found)
		scope, known := l.Scope()
		require.Equal(t, want != request.Cluster{}, known, url)
		require.Equal(t, want, scope.Cluster, url)
		require.Same(t, request.Clusters, scope.Mount)
	}
	l, _, err := request.Locate("/shards/amber/metrics", request.Shards)
	require.NoError(t, err)
	_, known := l.Scope()
	require.False(t, known)
}

func TestScoped(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/clusters/a/x%2Fy?z=1", http.NoBody)
	inner := request.Scoped(r, request.Scope{Cluster: request.Cluster{Name: "a"}}, "/x/y")
	require.Equal(t, "/x/y?z=1", inner.URL.String())
	require.Equal(t, "/clusters/a/x%2Fy?z=1", r.URL.String(), "the caller's request must not change")
	_, ok := request.ClusterFrom(r.Context())
	require.False(t, ok)
}

func TestVirtualWorkspaces(t *testing.T) {
	virtualWorkspace := func(name, path string, wildcard bool) *request.VirtualWorkspaceLocation {
		return &request.VirtualWorkspaceLocation{Name: name, Path: logicalcluster.NewPath(path), Wildcard: wildcard}
	}
	for url, want := range map[string]request.Location{
		"/services/apiexport/p/e.example.org/clusters/c/api/v1":  {Path: logicalcluster.NewPath("p"), VirtualWorkspace: virtualWorkspace("e.example.org", "c", false), Rest: "/api/v1"},
		"/services/apiexport/root:p/e/clusters/root:c":           {Path: logicalcluster.NewPath("root:p"), VirtualWorkspace: virtualWorkspace("e", "root:c", false), Rest: "/"},
		"/services/apiexport/p/e/clusters/*/apis":                {Path: logicalcluster.NewPath("p"), VirtualWorkspace: virtualWorkspace("e", "", true), Rest: "/apis"},
		"/services/apiexport/p/clusters/clusters/c/clusters/c/x": {Path: logicalcluster.NewPath("p"), VirtualWorkspace: virtualWorkspace("clusters", "c", false), Rest: "/clusters/c/x"},
	} {
		got := requireLocation(t, request.APIExports, url, want)
		scope, known := got.Scope()
		require.Equal(t, !strings.Contains(want.Path.String(), ":"), known, url)
		require.Equal(t, want.VirtualWorkspace.Wildcard, scope.VirtualWorkspace.In.Wildcard, url)
	}
	requireLocations(t, []*request.Mount{request.Clusters, request.APIExports}, nil, []string{
		"/services/apiexport/", "/services/apiexport/p", "/services/apiexport/p/e", "/services/apiexport/p/e/",
		"/services/apiexport/p/e/apis", "/services/apiexport/p/e/clusters", "/services/apiexport/p/e/clusters/",
		"/services/apiexport/p/e/clusters//apis", "/services/apiexport/p/e/clusters/../apis",
		"/services/apiexport/p/../clusters/c/apis", "/services/apiexport/../e/clusters/c/apis",
		"/services/apiexport/*/e/clusters/c/apis", "/services/apiexport/p/*/clusters/c/apis",
		"/services/apiexport/P/e/clusters/c/apis", "/services/apiexport/p/E/clusters/c/apis",
		"/services/apiexport/p/" + strings.Repeat("e", 254) + "/clusters/c/apis",
	})
}

// requireLocation checks that a URL of a mount has the location want, which it returns.
func requireLocation(t *testing.T, mount *request.Mount, url string, want request.Location) request.Location {
	t.Helper()
	got, found, err := request.Locate(url, request.Clusters, mount)
	require.True(t, found, url)
	require.NoError(t, err, url)
	want.Mount = mount
	require.Equal(t, want, got, url)
	return got
}

func TestSchemaVirtualWorkspaces(t *testing.T) {
	for url, want := range map[string]request.Location{
		"/services/apiresourceschema/c/clusters/*/apis":        {Path: logicalcluster.NewPath("c"), VirtualWorkspace: &request.VirtualWorkspaceLocation{Wildcard: true}, Rest: "/apis"},
		"/services/apiresourceschema/root:c/clusters/root:c/x": {Path: logicalcluster.NewPath("root:c"), VirtualWorkspace: &request.VirtualWorkspaceLocation{Path: logicalcluster.NewPath("root:c")}, Rest: "/x"},
	} {
		requireLocation(t, request.APIResourceSchemas, url, want)
	}
	requireLocations(t, []*request.Mount{request.Clusters, request.APIResourceSchemas}, nil, []string{
		"/services/apiresourceschema/", "/services/apiresourceschema/c", "/services/apiresourceschema/c/apis",
		"/services/apiresourceschema/*/clusters/*/apis", "/services/apiresourceschema/c/clusters/",
		"/services/apiresourceschema/c/e/clusters/c/apis", "/services/apiresourceschema/../clusters/c/apis",
		"/services/apiresourceschema/c/clusters/c%2fd/apis", "/services/apiresourceschema//clusters/c/apis/apis.kcp.",
	})
}

// TestMountsAreInATable checks that servers serve all mounts that are declared in this package.
func TestMountsAreInATable(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	declared := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			vars, ok := d.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			ast.Inspect(vars, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					if name, ok := n.Type.(*ast.Ident); ok && name.Name == "Mount" {
						declared++
					}
				case *ast.CallExpr:
					if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "virtualWorkspaceMount" {
						declared++
					}
				}
				return true
			})
		}
	}
	tables := map[string]bool{}
	for _, mount := range append(request.ShardMounts(), request.CacheMounts()...) {
		tables[mount.Prefix] = true
	}
	require.Len(t, tables, declared, "no table contains the mount")
}

// FuzzLocate checks that the results are valid segments of storage keys, and that nothing of the URL is lost.
func FuzzLocate(f *testing.F) {
	for _, seed := range []string{
		"/clusters/root/api", "/clusters/*/x", "/clusters/a:b/../c", "/clusters/system:x", "//clusters/a", "/clusters/%2e%2e/a",
		"/services/apiexport/p/e/clusters/c/api", "/services/apiexport/root:p/e.x/clusters/*/x", "/services/apiexport/p/../clusters/c",
		"/services/apiresourceschema/c/clusters/*/x", "/services/initializingworkspaces/root:t/clusters/c/x",
		"/services/cache/shards/a/clusters/b/apis", "/services/cache/shards/*/clusters/*", "/shards/a/clusters/b/x", "/services/cache/shards/a/metrics", "/services/admin/apis",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, url string) {
		l, found, err := request.Locate(url, append(request.ShardMounts(), request.CacheMounts()...)...)
		if !found || err != nil {
			return
		}
		segment := l.Path.String()
		if l.Wildcard {
			segment = request.Wildcard
		}
		for _, s := range []string{segment, l.Shard.String()} {
			require.True(t, s == request.Wildcard || !strings.ContainsAny(s, "/.*%\x00 "), "segment %q", s)
		}
		require.True(t, strings.HasPrefix(l.Rest, "/"))
		again := l.Mount.Prefix + segment + l.Rest
		switch {
		case l.VirtualWorkspace != nil:
			in := l.VirtualWorkspace.Path.String()
			if l.VirtualWorkspace.Wildcard {
				in = request.Wildcard
			}
			require.NotEmpty(t, in)
			require.True(t, in == request.Wildcard || !strings.ContainsAny(in+l.VirtualWorkspace.Name, "/*%\x00 "), "segments %q and %q", in, l.VirtualWorkspace.Name)
			require.NotContains(t, "/"+l.VirtualWorkspace.Name+"/", "/../")
			again = l.Mount.VirtualWorkspacePath(logicalcluster.Name(segment), l.VirtualWorkspace.Name) + request.ClusterPath(in) + l.Rest
		case l.Mount.Whole:
			again = strings.TrimSuffix(l.Mount.Prefix, "/") + l.Rest
		case l.Mount == request.Clusters:
			require.NotEmpty(t, segment)
		case segment == "":
			again = l.Mount.Prefix + l.Shard.String() + l.Rest
		default:
			again = l.Mount.Prefix + l.Shard.String() + request.ClusterPath(segment) + l.Rest
		}
		require.Equal(t, strings.TrimSuffix(url, "/"), strings.TrimSuffix(again, "/"))
	})
}
