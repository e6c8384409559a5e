package request_test

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
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
	ctx = request.WithShardSelector(ctx, "configmaps", sharding.Everything())
	require.NotNil(t, request.ShardSelectorFrom(ctx, "configmaps"))
	require.Nil(t, request.ShardSelectorFrom(ctx, "secrets"))

	other := request.WithClusterName(ctx, "b")
	require.Nil(t, request.ShardSelectorFrom(other, "configmaps"), "the part is of the other logical cluster's objects")
	require.Equal(t, request.Scope{Shard: request.Shard{Name: "s1"}, Cluster: request.Cluster{Name: "b"}}, request.ScopeFrom(other))
	name, err := request.ClusterNameFrom(ctx)
	require.NoError(t, err)
	require.Equal(t, "a", name.String(), "the context it was made from stays as it was")
	require.Zero(t, request.ScopeFrom(t.Context()))
}
