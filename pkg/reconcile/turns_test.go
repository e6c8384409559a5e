package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTurns(t *testing.T) {
	t.Parallel()
	turns := Turns[string]{Interval: time.Second}
	now := time.Unix(1000, 0)
	require.Zero(t, turns.Wait("a", now))
	require.Equal(t, time.Second, turns.Wait("b", now))
	require.Equal(t, 2*time.Second, turns.Wait("c", now))
	require.Equal(t, time.Second, turns.Wait("b", now), "the turn of a key must not change")
	require.LessOrEqual(t, turns.Wait("b", now.Add(time.Minute)), time.Duration(0))
	turns.Forget("b")
	require.Zero(t, turns.Wait("b", now.Add(time.Hour)))
}
