package webhooktransport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCallsWait(t *testing.T) {
	t.Parallel()
	c := NewCalls(2)
	first, err := c.Take(t.Context(), Caller{Cluster: "one"}, 2)
	require.NoError(t, err)
	waited := make(chan error)
	go func() {
		release, err := c.Take(t.Context(), Caller{Cluster: "one"}, 1)
		if err == nil {
			release()
		}
		waited <- err
	}()
	first()
	require.NoError(t, <-waited)
	require.Empty(t, c.of, "what nobody uses is forgotten")
}
