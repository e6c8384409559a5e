package budget

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// take takes one after the other until it is refused.
func take(b *Budget[string], who string) (n int) {
	for b.Take(who, 1) {
		n++
	}
	return n
}

func TestNobodyTakesAll(t *testing.T) {
	b := New[string](Limits{Total: 100, Each: 30})
	require.Equal(t, 30, take(b, "a"), "up to what each may have")
	require.Equal(t, 30, take(b, "b"))
	require.Equal(t, 20, take(b, "c"), "and no more than is left for others")
	require.Equal(t, 10, take(b, "d"))
	require.Equal(t, 5, take(b, "e"))
	require.EqualValues(t, 95, b.Taken())
	require.True(t, b.Take("newcomer", 1))
	require.False(t, b.Take("large", 30))

	b.Give("a", 30)
	require.Equal(t, 17, take(b, "a"))
	for who, n := range b.by {
		b.Give(who, n)
	}
	require.Zero(t, b.Taken())
	require.Empty(t, b.by, "who has nothing is forgotten")
}

func TestOwn(t *testing.T) {
	b := New[string](Limits{Total: 4, Each: 3, Own: 2})
	for _, who := range []string{"a", "b", "c", "d"} {
		require.Equal(t, 2, take(b, who), "whoever there is besides")
	}
	require.EqualValues(t, 8, b.Taken())
}
