package request_test

import (
	"context"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"

	"github.com/shardplane/shardplane/pkg/request"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", request.MaxNameLength)
	for _, tc := range []struct {
		name, cluster, path bool
		texts               []string
	}{
		{true, true, true, []string{"a", "2x1k-b", long}},
		{false, true, true, []string{"system:admin"}},
		{false, false, true, []string{"root:a", "root:" + long, "root:system:a"}},
		{false, false, false, []string{
			long + "a", "", "*", "-a", "a-", "A", "a.b", "é", "root:" + long + "a", "root:", "root::a", ":root", "root:*",
			"system:", "system:../a", "system:a:b",
		}},
	} {
		for _, text := range tc.texts {
			require.Equal(t, tc.name, request.ValidName(text), text)
			require.Equal(t, tc.cluster, request.ValidClusterName(logicalcluster.Name(text)), text)
			require.Equal(t, tc.path, request.ValidPath(logicalcluster.NewPath(text)), text)
			require.Equal(t, strings.HasPrefix(text, "system:"), request.IsSystem(logicalcluster.Name(text)), text)
		}
	}
}

// FuzzNames checks that valid names are valid for upstream's types, and cannot leave their segment of a URL or key.
func FuzzNames(f *testing.F) {
	for _, text := range []string{"root", "root:a", "system:admin", "system:../x", "*", "", "a\nb", "x:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := logicalcluster.NewPath(text)
		if request.ValidPath(path) {
			require.True(t, path.IsValid(), "%q", text)
		} else if !request.IsSystem(logicalcluster.Name(text)) {
			require.False(t, path.IsValid() && path != logicalcluster.Wildcard, "%q", text)
		}
		if request.ValidClusterName(logicalcluster.Name(text)) {
			require.False(t, strings.ContainsAny(text, "/.*%\x00 \n"), "%q", text)
		}
	})
}

// TestAccessAuthorized checks that authorization is reported only for the logical cluster of the request.
func TestAccessAuthorized(t *testing.T) {
	request.AccessAuthorized(t.Context()) // no effect

	times := 0
	ctx := request.OnAccessAuthorized(request.WithClusterName(t.Context(), "a"), func() { times++ })
	request.AccessAuthorized(request.WithClusterName(ctx, "b"))
	require.Zero(t, times, "reported for another logical cluster")
	request.AccessAuthorized(ctx)
	require.Equal(t, 1, times)
	name, err := request.ClusterNameFrom(ctx)
	require.NoError(t, err)
	require.Equal(t, "a", name.String())
}

func TestClusterInContext(t *testing.T) {
	ctx := t.Context()
	_, ok := request.ClusterFrom(ctx)
	require.False(t, ok)
	_, err := request.ClusterNameFrom(ctx)
	require.ErrorIs(t, err, request.ErrNoCluster)

	_, err = request.ClusterNameFrom(request.WithWildcard(ctx))
	require.ErrorIs(t, err, request.ErrWildcard)

	name, err := request.ClusterNameFrom(request.WithClusterName(ctx, "root"))
	require.NoError(t, err)
	require.Equal(t, "root", name.String())

	_, ok = request.ClusterFrom(request.WithCluster(ctx, request.Cluster{}))
	require.False(t, ok, "an empty cluster must not be found")

	_, ok = request.ShardFrom(ctx)
	require.False(t, ok)
	shard, ok := request.ShardFrom(request.WithScope(ctx, request.Scope{Shard: request.Shard{Name: "s1"}}))
	require.True(t, ok)
	require.Equal(t, "s1", shard.String())
}

// TestScopeOfOtherCluster checks that a context for another logical cluster keeps only the shard of the scope.
func TestScopeOfOtherCluster(t *testing.T) {
	ctx := request.WithScope(t.Context(), request.Scope{Shard: request.Shard{Name: "s1"}, UnresolvedPath: logicalcluster.NewPath("root:lost")})
	ctx = request.WithClusterName(ctx, "a")
	ctx = request.WithShardSelector(ctx, sharding.Everything())
	require.NotNil(t, request.ShardSelectorFrom(ctx))

	other := request.WithClusterName(ctx, "b")
	require.Nil(t, request.ShardSelectorFrom(other), "the selector must not apply to another logical cluster")
	require.Equal(t, request.Scope{Shard: request.Shard{Name: "s1"}, Cluster: request.Cluster{Name: "b"}}, request.ScopeFrom(other))
	name, err := request.ClusterNameFrom(ctx)
	require.NoError(t, err)
	require.Equal(t, "a", name.String(), "the original context must not change")
	require.Zero(t, request.ScopeFrom(t.Context()))
}

type restriction struct{ to schema.GroupResource }

func (r restriction) Resource() schema.GroupResource { return r.to }

// TestCheckStorage checks that requests with an identity or restriction for another resource, or
// through a virtual workspace without either, are rejected by a storage.
func TestCheckStorage(t *testing.T) {
	here, elsewhere := schema.GroupResource{Resource: "events"}, schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	for name, through := range map[string]request.Through{
		"directly":                    {},
		"through a virtual workspace": {Mount: request.APIExports, Provider: "p", VirtualWorkspace: "e"},
		"through a virtual workspace, unrestricted": {Mount: request.TerminatingWorkspaces, Provider: "p", VirtualWorkspace: "t", Unrestricted: true},
	} {
		ctx := request.WithThrough(request.WithWildcard(t.Context()), through)
		restricts := through.Mount != nil && !through.Unrestricted
		for what, tc := range map[string]struct {
			ctx     context.Context //nolint:containedctx // the input of the test case
			refused bool
		}{
			"nothing":                           {ctx, restricts},
			"no identity":                       {request.WithIdentity(ctx, here, ""), restricts},
			"an identity":                       {request.WithIdentity(ctx, here, "h"), false},
			"an identity of another resource":   {request.WithIdentity(ctx, elsewhere, "h"), true},
			"a restriction":                     {request.WithRestriction(ctx, restriction{here}), false},
			"a restriction of another resource": {request.WithRestriction(ctx, restriction{elsewhere}), true},
			"an identity, and a restriction of another resource": {request.WithRestriction(request.WithIdentity(ctx, here, "h"), restriction{elsewhere}), true},
			"in another logical cluster":                         {request.WithClusterName(request.WithRestriction(ctx, restriction{elsewhere}), "c"), false},
		} {
			err := request.CheckStorage(tc.ctx, here)
			require.Equal(t, tc.refused, err != nil, "%s, %s: %v", name, what, err)
		}
	}
}
