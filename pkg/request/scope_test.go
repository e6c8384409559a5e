package request_test

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"

	"github.com/shardplane/shardplane/pkg/request"
)

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
	require.False(t, ok, "an empty cluster is none")

	_, ok = request.ShardFrom(ctx)
	require.False(t, ok)
	shard, ok := request.ShardFrom(request.WithScope(ctx, request.Scope{Shard: request.Shard{Name: "s1"}}))
	require.True(t, ok)
	require.Equal(t, "s1", shard.String())
}

// TestScopeOfAPart holds that a context for another logical cluster has nothing
// of the request's scope but the shard.
func TestScopeOfAPart(t *testing.T) {
	ctx := request.WithScope(t.Context(), request.Scope{Shard: request.Shard{Name: "s1"}, Nowhere: logicalcluster.NewPath("root:lost")})
	ctx = request.WithClusterName(ctx, "a")
	ctx = request.WithShardSelector(ctx, sharding.Everything())
	require.NotNil(t, request.ShardSelectorFrom(ctx))

	other := request.WithClusterName(ctx, "b")
	require.Nil(t, request.ShardSelectorFrom(other), "the part is of the other logical cluster's objects")
	require.Equal(t, request.Scope{Shard: request.Shard{Name: "s1"}, Cluster: request.Cluster{Name: "b"}}, request.ScopeFrom(other))
	name, err := request.ClusterNameFrom(ctx)
	require.NoError(t, err)
	require.Equal(t, "a", name.String(), "the context it was made from stays as it was")
	require.Zero(t, request.ScopeFrom(t.Context()))
}

type restriction struct{ to schema.GroupResource }

func (r restriction) Resource() schema.GroupResource { return r.to }

// TestCheckStorage holds that a request whose identity or restriction is for another resource, or
// that came through a virtual workspace without either, does not reach a storage.
func TestCheckStorage(t *testing.T) {
	here, elsewhere := schema.GroupResource{Resource: "events"}, schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	for name, through := range map[string]request.Through{
		"directly":                    {},
		"through a virtual workspace": {Mount: request.APIExports, Provider: "p", VirtualWorkspace: "e"},
		"through a virtual workspace, to all of it": {Mount: request.TerminatingWorkspaces, Provider: "p", VirtualWorkspace: "t", Unrestricted: true},
	} {
		ctx := request.WithThrough(request.WithWildcard(t.Context()), through)
		restricts := through.Mount != nil && !through.Unrestricted
		for what, tc := range map[string]struct {
			ctx     context.Context //nolint:containedctx // the input of the test case
			refused bool
		}{
			"nothing":                    {ctx, restricts},
			"no identity":                {request.WithIdentity(ctx, here, ""), restricts},
			"an identity":                {request.WithIdentity(ctx, here, "h"), false},
			"an identity of another":     {request.WithIdentity(ctx, elsewhere, "h"), true},
			"a restriction":              {request.WithRestriction(ctx, restriction{here}), false},
			"a restriction of another":   {request.WithRestriction(ctx, restriction{elsewhere}), true},
			"one of them of another":     {request.WithRestriction(request.WithIdentity(ctx, here, "h"), restriction{elsewhere}), true},
			"in another logical cluster": {request.WithClusterName(request.WithRestriction(ctx, restriction{elsewhere}), "c"), false},
		} {
			err := request.CheckStorage(tc.ctx, here)
			require.Equal(t, tc.refused, err != nil, "%s, %s: %v", name, what, err)
		}
	}
}
