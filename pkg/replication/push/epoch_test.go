package push

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEpoch checks that the epoch of checkpoints never decreases, even if the cache server loses data.
func TestEpoch(t *testing.T) {
	first, second := newEpoch(), newEpoch()
	require.Less(t, first, second)

	m := new(epochs)
	require.Equal(t, first, m.next(first, false))
	require.Equal(t, first, m.next("", false), "the epoch must be kept if the checkpoint was lost")
	require.Equal(t, second, m.next(second, false))
	require.Equal(t, second, m.next(first, false), "the epoch must be kept if the cache server was restored from a backup")
	require.Equal(t, second, m.next(first, true), "the epoch must be kept if the checkpoint has an earlier epoch")
	third := m.next(second, true)
	require.Greater(t, third, second)
	require.Equal(t, third, m.next("", false))
	require.NotEmpty(t, new(epochs).next("", false))

	// Clocks of a shard's replicas may differ, or be set back.
	ahead := "ffffffff-fffe-7fff-bfff-ffffffffffff"
	require.Equal(t, ahead, m.next(ahead, false))
	fourth := m.next(ahead, true)
	require.Greater(t, fourth, ahead)
	require.Contains(t, fourth, "ffffffff-ffff-7")
	require.Contains(t, newEpochAfter("ff00ffff-ffff-7fff-bfff-ffffffffffff"), "ff010000-0000-7")
}
