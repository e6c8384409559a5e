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

func TestClusters(t *testing.T) {
	for _, tc := range []struct {
		url      string
		path     string
		wildcard bool
		rest     string
		found    bool
		invalid  bool
	}{
		{url: "/api/v1/namespaces"},
		{url: "/clusters"},
		{url: "/clustersx/root/api"},
		{url: "/clusters/root", path: "root", rest: "/", found: true},
		{url: "/clusters/root/", path: "root", rest: "/", found: true},
		{url: "/clusters/root/api/v1", path: "root", rest: "/api/v1", found: true},
		{url: "/clusters/root:org:team/apis", path: "root:org:team", rest: "/apis", found: true},
		{url: "/clusters/system:admin/apis", path: "system:admin", rest: "/apis", found: true},
		{url: "/clusters/*/api/v1/configmaps", wildcard: true, rest: "/api/v1/configmaps", found: true},
		{url: "/clusters/a1/clusters/b1", path: "a1", rest: "/clusters/b1", found: true},
		{url: "/clusters//api", found: true, invalid: true},
		{url: "/clusters/", found: true, invalid: true},
		{url: "/clusters/Root/api", found: true, invalid: true},
		{url: "/clusters/../api", found: true, invalid: true},
		{url: "/clusters/root:/api", found: true, invalid: true},
		{url: "/clusters/:root/api", found: true, invalid: true},
		{url: "/clusters/root::x/api", found: true, invalid: true},
		{url: "/clusters/system:../api", found: true, invalid: true},
		{url: "/clusters/ro%6ft/api", found: true, invalid: true},
		{url: "/clusters/**/api", found: true, invalid: true},
		{url: "/clusters/ro ot/api", found: true, invalid: true},
		{url: "/clusters/ro\x00ot/api", found: true, invalid: true},
	} {
		t.Run(tc.url, func(t *testing.T) {
			got, found, err := request.Locate(tc.url, request.Clusters)
			require.Equal(t, tc.found, found)
			if tc.invalid {
				var invalid *request.InvalidURLError
				require.ErrorAs(t, err, &invalid)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.path, got.Path.String())
			require.Equal(t, tc.wildcard, got.Wildcard)
			require.Equal(t, tc.rest, got.Rest)
		})
	}
}

func TestShards(t *testing.T) {
	mounts := request.CacheMounts()
	for _, tc := range []struct {
		url              string
		shard, path      string
		wildcard         bool
		rest             string
		invalid, nowhere bool
	}{
		{url: "/shards/root/clusters/*/apis", shard: "root", wildcard: true, rest: "/apis"},
		{url: "/shards/*/clusters/root", shard: "*", path: "root", rest: "/"},
		{url: "/services/cache/shards/amber/clusters/root/apis", shard: "amber", path: "root", rest: "/apis"},
		{url: "/services/cache/shards/*/clusters/*/apis/g/v1/things", shard: "*", wildcard: true, rest: "/apis/g/v1/things"},
		{url: "/services/cache/shards/amber/clusters/system:shard/apis", shard: "amber", path: "system:shard", rest: "/apis"},
		{url: "/services/cache/shards/amber/metrics", shard: "amber", rest: "/metrics"},
		{url: "/services/cache/shards/amber", shard: "amber", rest: "/"},
		{url: "/shards//x", invalid: true},
		{url: "/shards/../x", invalid: true},
		{url: "/shards/A/x", invalid: true},
		{url: "/shards/a:b/x", invalid: true},
		{url: "/shards/system:x/y", invalid: true},
		{url: "/shards/**/clusters/root", invalid: true},
		{url: "/shards/a/clusters//apis", invalid: true},
		{url: "/shards/a/clusters/system:a:b/apis", invalid: true},
		{url: "/clusters/root", nowhere: true},
		{url: "/services/cache/clusters/root", nowhere: true},
		{url: "/services/cacheshards/a/clusters/root", nowhere: true},
	} {
		t.Run(tc.url, func(t *testing.T) {
			l, found, err := request.Locate(tc.url, mounts...)
			require.Equal(t, !tc.nowhere, found)
			if tc.invalid {
				var invalid *request.InvalidURLError
				require.ErrorAs(t, err, &invalid)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.shard, l.Shard.String())
			require.Equal(t, tc.path, l.Path.String())
			require.Equal(t, tc.wildcard, l.Wildcard)
			require.Equal(t, tc.rest, l.Rest)
		})
	}
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

func TestViews(t *testing.T) {
	view := func(name, path string, wildcard bool) *request.VirtualWorkspaceLocation {
		return &request.VirtualWorkspaceLocation{Name: name, Path: logicalcluster.NewPath(path), Wildcard: wildcard}
	}
	for url, want := range map[string]request.Location{
		"/services/apiexport/p/e.example.org/clusters/c/api/v1":                  {Path: logicalcluster.NewPath("p"), VirtualWorkspace: view("e.example.org", "c", false), Rest: "/api/v1"},
		"/services/apiexport/root:p/e/clusters/root:c":                           {Path: logicalcluster.NewPath("root:p"), VirtualWorkspace: view("e", "root:c", false), Rest: "/"},
		"/services/apiexport/p/e/clusters/*/apis":                                {Path: logicalcluster.NewPath("p"), VirtualWorkspace: view("e", "", true), Rest: "/apis"},
		"/services/apiexport/p/clusters/clusters/c/clusters/c/x":                 {Path: logicalcluster.NewPath("p"), VirtualWorkspace: view("clusters", "c", false), Rest: "/clusters/c/x"},
		"/services/apiexport/":                                                   {},
		"/services/apiexport/p":                                                  {},
		"/services/apiexport/p/e":                                                {},
		"/services/apiexport/p/e/":                                               {},
		"/services/apiexport/p/e/apis":                                           {},
		"/services/apiexport/p/e/clusters":                                       {},
		"/services/apiexport/p/e/clusters/":                                      {},
		"/services/apiexport/p/e/clusters//apis":                                 {},
		"/services/apiexport/p/e/clusters/../apis":                               {},
		"/services/apiexport/p/../clusters/c/apis":                               {},
		"/services/apiexport/../e/clusters/c/apis":                               {},
		"/services/apiexport/*/e/clusters/c/apis":                                {},
		"/services/apiexport/p/*/clusters/c/apis":                                {},
		"/services/apiexport/P/e/clusters/c/apis":                                {},
		"/services/apiexport/p/E/clusters/c/apis":                                {},
		"/services/apiexport/p/" + strings.Repeat("e", 254) + "/clusters/c/apis": {},
	} {
		got, valid := requireView(t, request.APIExports, url, want)
		if !valid {
			continue
		}
		scope, known := got.Scope()
		require.Equal(t, !strings.Contains(want.Path.String(), ":"), known, url)
		require.Equal(t, want.VirtualWorkspace.Wildcard, scope.VirtualWorkspace.In.Wildcard, url)
	}
}

// requireView checks that a URL of a mount has the location want, or is invalid. It returns the
// location and whether it is valid.
func requireView(t *testing.T, mount *request.Mount, url string, want request.Location) (got request.Location, valid bool) {
	t.Helper()
	got, found, err := request.Locate(url, request.Clusters, mount)
	require.True(t, found, url)
	if want.VirtualWorkspace == nil {
		var invalid *request.InvalidURLError
		require.ErrorAs(t, err, &invalid, url)
		return got, false
	}
	require.NoError(t, err, url)
	want.Mount = mount
	require.Equal(t, want, got, url)
	return got, true
}

func TestOwnViews(t *testing.T) {
	for url, want := range map[string]request.Location{
		"/services/apiresourceschema/c/clusters/*/apis":          {Path: logicalcluster.NewPath("c"), VirtualWorkspace: &request.VirtualWorkspaceLocation{Wildcard: true}, Rest: "/apis"},
		"/services/apiresourceschema/root:c/clusters/root:c/x":   {Path: logicalcluster.NewPath("root:c"), VirtualWorkspace: &request.VirtualWorkspaceLocation{Path: logicalcluster.NewPath("root:c")}, Rest: "/x"},
		"/services/apiresourceschema/":                           {},
		"/services/apiresourceschema/c":                          {},
		"/services/apiresourceschema/c/apis":                     {},
		"/services/apiresourceschema/*/clusters/*/apis":          {},
		"/services/apiresourceschema/c/clusters/":                {},
		"/services/apiresourceschema/c/e/clusters/c/apis":        {},
		"/services/apiresourceschema/../clusters/c/apis":         {},
		"/services/apiresourceschema/c/clusters/c%2fd/apis":      {},
		"/services/apiresourceschema//clusters/c/apis/apis.kcp.": {},
	} {
		requireView(t, request.APIResourceSchemas, url, want)
	}
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
					if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "typeMount" {
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
	require.Len(t, tables, declared, "a mount is in no table")
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
