package shard

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/serving/features"
)

// TestFeatureGates checks the options that depend on feature gates.
func TestFeatureGates(t *testing.T) {
	t.Parallel()
	c := NewOptions().Complete()
	require.True(t, c.Homes.Enabled)
	require.True(t, c.Authentication.Workspaces.Enabled)
	o := NewOptions()
	o.Serving.FeatureGates = features.Gates{string(features.HomeWorkspaces): "false", string(features.WorkspaceAuthentication): "false"}
	c = o.Complete()
	require.False(t, c.Homes.Enabled)
	require.False(t, c.Authentication.Workspaces.Enabled)
}
