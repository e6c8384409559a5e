package request_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

func TestSplitCluster(t *testing.T) {
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
			got, found, err := request.SplitCluster(tc.url)
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

func TestSplitShard(t *testing.T) {
	shard, rest, found, err := request.SplitShard("/shards/root/clusters/*/apis")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "root", shard.String())
	require.Equal(t, "/clusters/*/apis", rest)

	shard, _, found, err = request.SplitShard("/shards/*/clusters/root")
	require.NoError(t, err)
	require.True(t, found)
	require.True(t, shard.Wildcard)

	for _, bad := range []string{"/shards//x", "/shards/../x", "/shards/A/x", "/shards/a:b/x", "/shards/system:x/y"} {
		_, _, found, err = request.SplitShard(bad)
		require.True(t, found, bad)
		var invalid *request.InvalidURLError
		require.ErrorAs(t, err, &invalid, bad)
	}

	_, _, found, err = request.SplitShard("/clusters/root")
	require.NoError(t, err)
	require.False(t, found)
}

// FuzzSplitCluster holds that what comes out of a URL is fit to be a segment of
// a storage key, and that nothing of the URL is lost.
func FuzzSplitCluster(f *testing.F) {
	for _, seed := range []string{"/clusters/root/api", "/clusters/*/x", "/clusters/a:b/../c", "/clusters/system:x", "//clusters/a", "/clusters/%2e%2e/a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, url string) {
		got, found, err := request.SplitCluster(url)
		if !found || err != nil {
			return
		}
		segment := got.Path.String()
		if got.Wildcard {
			segment = request.Wildcard
		} else {
			require.NotEmpty(t, segment)
			require.False(t, strings.ContainsAny(segment, "/.*%\x00 "), "segment %q", segment)
		}
		require.True(t, strings.HasPrefix(got.Rest, "/"))
		require.Equal(t, strings.TrimSuffix(url, "/"), strings.TrimSuffix(request.ClusterPath(segment)+got.Rest, "/"))
	})
}
