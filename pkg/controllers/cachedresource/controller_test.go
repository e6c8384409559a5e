package cachedresource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoClientForNothing: a look after which nothing is different makes no client, which there is none for here.
func TestNoClientForNothing(t *testing.T) {
	t.Parallel()
	object := cachedOf("c", "one", 0, withReplicas)
	same, err := (&controller{}).commit(t.Context(), object, object.DeepCopy())
	require.NoError(t, err)
	require.Equal(t, object, same)
}
