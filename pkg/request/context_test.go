package request_test

import (
	"testing"

	"github.com/stretchr/testify/require"

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
	shard, ok := request.ShardFrom(request.WithShard(ctx, request.Shard{Name: "s1"}))
	require.True(t, ok)
	require.Equal(t, "s1", shard.String())
}
