package claims

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/test/bubble"
)

// TestSource verifies that a suspended source is not current until the claims were read again, and that its changes
// count as seen by all replicas only after the lag.
func TestSource(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := &Source{}
		require.NoError(t, source.Current())
		s := NewSet(source, secrets, "", 10)
		advanced := func() []Change {
			s.Advance(25)
			return missed(t, s, 26, false)
		}
		for range 20 {
			require.False(t, source.Heartbeat())
			require.NoError(t, s.Current())
			<-time.After(HeartbeatInterval)
		}
		s.Allow("a", nil, 20)
		<-time.After(suspendedAfter)
		require.True(t, apierrors.IsTooManyRequests(s.Current()), "a suspended source must not be current")
		<-time.After(2 * lag)
		require.Len(t, advanced(), 1)
		require.True(t, source.Heartbeat())
		require.Error(t, s.Current())
		require.True(t, source.Heartbeat())

		began := time.Now()
		<-time.After(suspendedAfter + 1)
		source.Restart(began)
		require.Error(t, s.Current(), "a source that is suspended during the read must not be current")
		require.True(t, source.Heartbeat())
		source.Restart(time.Now())
		require.NoError(t, s.Current())
		for range int(lag / HeartbeatInterval) {
			require.Len(t, advanced(), 1)
			<-time.After(HeartbeatInterval)
			require.False(t, source.Heartbeat())
		}
		<-time.After(1)
		require.Empty(t, advanced())
	})
}
