package controllers

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/controllers/customresourcedefinition"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// TestOnlyLeaderDeletesInstances: only the leader deletes instances of definitions.
func TestOnlyLeaderDeletesInstances(t *testing.T) {
	catalogue := Catalogue()
	at := slices.IndexFunc(catalogue, func(d reconcile.Descriptor[Deps]) bool { return d.Name == customresourcedefinition.Name })
	require.GreaterOrEqual(t, at, 0)
	require.Equal(t, reconcile.OnLeader, catalogue[at].Placement)
}
