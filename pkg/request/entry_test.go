package request_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestEntered holds that entering counts for the logical cluster that the
// request is for, and for no other.
func TestEntered(t *testing.T) {
	request.AccessAuthorized(t.Context()) // nobody wants to know

	times := 0
	ctx := request.WithEntry(request.WithClusterName(t.Context(), "a"), func() { times++ })
	request.AccessAuthorized(request.WithClusterName(ctx, "b"))
	require.Zero(t, times, "a part of the work that is for another logical cluster")
	request.AccessAuthorized(ctx)
	require.Equal(t, 1, times)
	name, err := request.ClusterNameFrom(ctx)
	require.NoError(t, err)
	require.Equal(t, "a", name.String())
}
