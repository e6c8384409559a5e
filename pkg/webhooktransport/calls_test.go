package webhooktransport

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

func TestCallsWait(t *testing.T) {
	t.Parallel()
	c := NewCalls(2)
	paused, resumed := make(chan bool, 1), make(chan bool, 1)
	ctx := request.WithPause(t.Context(), func() (resume func()) {
		paused <- true
		return func() { resumed <- true }
	})
	first, err := c.Take(ctx, Caller{Cluster: "one"}, 2)
	require.NoError(t, err)
	waited := make(chan error)
	go func() {
		release, err := c.Take(ctx, Caller{Cluster: "one"}, 1)
		if err == nil {
			release()
		}
		waited <- err
	}()
	require.Eventually(t, func() bool { return len(paused) == 1 }, time.Minute, time.Millisecond, "the waiting request is not paused")
	<-paused
	require.Empty(t, resumed)
	first()
	require.NoError(t, <-waited)
	<-resumed
	require.Empty(t, paused, "requests that do not wait must not be paused")
	require.Empty(t, c.of, "unused slots must be removed")
}
