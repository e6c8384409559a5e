package replication

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEpoch holds that the marks of all caches come to one epoch, the latest.
func TestEpoch(t *testing.T) {
	first, second := newEpoch(), newEpoch()
	require.Less(t, first, second)

	e := &epoch{}
	require.Equal(t, first, e.agree(first))
	require.Equal(t, first, e.agree(""), "a cache without a mark gets the same")
	require.Equal(t, second, e.agree(second))
	require.Equal(t, second, e.agree(first), "a cache that was away")
	require.Equal(t, second, e.renew(first), "that the shard was set back was noticed elsewhere already")
	third := e.renew(second)
	require.Greater(t, third, second)
	require.Equal(t, third, e.agree(""))

	// Clocks of a shard's replicas may differ, or be set back.
	ahead := "ffffffff-fffe-7fff-bfff-ffffffffffff"
	require.Equal(t, ahead, e.agree(ahead))
	fourth := e.renew(ahead)
	require.Greater(t, fourth, ahead)
	require.Contains(t, fourth, "ffffffff-ffff-7")
	require.Equal(t, fourth, e.agree(third))
	carried := newEpochAfter("ff00ffff-ffff-7fff-bfff-ffffffffffff")
	require.Contains(t, carried, "ff010000-0000-7")
	require.NotEmpty(t, (&epoch{}).agree(""))
}
