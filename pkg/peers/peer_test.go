package peers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/bubble"
)

func TestUnreachableShardReceivesOnlyProbes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, down := &Peer{Name: "there"}, errors.New("connection refused")
		requests := 0
		request := func(err error) error {
			return p.Do(t.Context(), time.Minute, func(context.Context) error { requests++; return err })
		}
		require.NoError(t, request(nil))
		require.ErrorIs(t, request(down), down)
		require.ErrorIs(t, request(nil), ErrUnreachable)
		require.Equal(t, 2, requests, "an unreachable shard must not receive requests")

		<-time.After(OpenTimeout)
		require.NoError(t, p.Do(t.Context(), time.Minute, func(context.Context) error {
			require.ErrorIs(t, request(nil), ErrUnreachable)
			require.Equal(t, 2, requests, "only one probe may be sent at a time")
			return nil
		}))
		require.NoError(t, request(nil))
		require.Equal(t, 3, requests, "the shard must receive requests again")

		require.ErrorIs(t, request(down), ErrUnreachable)
		<-time.After(OpenTimeout)
		require.ErrorIs(t, request(down), ErrUnreachable)
		require.ErrorIs(t, request(nil), ErrUnreachable)
		require.Equal(t, 5, requests, "the timeout must restart with the failed probe")

		<-time.After(OpenTimeout)
		require.Panics(t, func() { _ = p.Do(t.Context(), time.Minute, func(context.Context) error { panic("x") }) })
		require.NoError(t, request(nil), "a probe without a result must allow the next one")
	})
}

func TestTimeoutsCount(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &Peer{Name: "there"}
		hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		left, leave := context.WithCancel(t.Context())
		leave()
		require.ErrorIs(t, p.Do(left, time.Minute, hang), context.Canceled)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Do(short, time.Minute, hang), context.DeadlineExceeded)
		require.True(t, p.Allow(), "a canceled request must not make the shard unreachable")
		p.Done()

		require.ErrorIs(t, p.Do(t.Context(), time.Minute, hang), ErrUnreachable)
		require.False(t, p.Allow())
		<-time.After(OpenTimeout)
		require.ErrorIs(t, p.Do(left, time.Minute, hang), context.Canceled)
		require.True(t, p.Allow(), "a canceled probe must allow the next one")
		require.False(t, p.Allow())
		p.Observe(t.Context(), true, nil)
		require.True(t, p.Allow())
	})
}

func TestResponded(t *testing.T) {
	require.True(t, responded(nil))
	require.True(t, responded(apierrors.NewConflict(kinds.LogicalClusters.GroupResource(), "x", errors.New("y"))))
	require.True(t, responded(apierrors.NewTooManyRequests("x", 1)))
	require.False(t, responded(apierrors.NewServiceUnavailable("starting")))
	require.False(t, responded(errors.New("connection refused")))
}

// TestResponses tests a shard that responds and one that does not exist.
func TestResponses(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	factory, err := client.NewFactory(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	defer factory.CloseIdleConnections()
	p := NewPeer("there", factory)
	get := func(ctx context.Context) error {
		_, err := kinds.LogicalClusters.In(p.Clients.Cluster(rootPath)).Get(ctx, "cluster", metav1.GetOptions{})
		return err
	}
	require.True(t, apierrors.IsNotFound(p.Do(t.Context(), testTimeout, get)), "an error of the shard is a response")
	server.Close()
	require.ErrorIs(t, p.Do(t.Context(), testTimeout, get), ErrUnreachable)
	require.False(t, p.Allow())
}

// TestSilent: callers with other choices do not use a shard for a while after it did not respond.
func TestSilent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, responded := &Peer{Name: "there"}, errors.New("connection refused")
		request := func() error { return p.Do(t.Context(), time.Minute, func(context.Context) error { return responded }) }
		require.False(t, p.Silent())
		require.Error(t, request())
		require.True(t, p.Silent())
		<-time.After(silentTimeout + OpenTimeout)
		require.False(t, p.Silent(), "the shard must be tried again after a while")
		require.Error(t, request())
		require.True(t, p.Silent())
		responded = nil
		<-time.After(OpenTimeout)
		require.NoError(t, request())
		require.False(t, p.Silent())
	})
}
