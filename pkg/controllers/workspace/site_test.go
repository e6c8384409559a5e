package workspace

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

func TestASilentShardIsNotAskedAllTheTime(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.NotFound(w, nil)
	}))
	factory, err := client.NewFactory(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	s := &site{factory: factory}

	_, err = s.get(t.Context(), "abc")
	require.True(t, apierrors.IsNotFound(err), "an answer is an answer: %v", err)
	server.Close()
	_, err = s.get(t.Context(), "abc")
	require.ErrorIs(t, err, errUnreachable)
	require.True(t, s.failing)

	called := false
	ask := func(context.Context) error { called = true; return nil }
	require.ErrorIs(t, s.call(t.Context(), ask), errUnreachable)
	require.False(t, called, "not asked again at once")

	s.silent = time.Time{}
	require.NoError(t, s.call(t.Context(), func(ctx context.Context) error {
		require.ErrorIs(t, s.call(ctx, ask), errUnreachable)
		require.False(t, called, "one request at a time finds out")
		return nil
	}))
	require.NoError(t, s.call(t.Context(), ask))
	require.True(t, called, "it answers again")
	require.Equal(t, int32(1), asked.Load())
}

func TestAnswered(t *testing.T) {
	require.True(t, answered(nil))
	require.True(t, answered(apierrors.NewConflict(client.LogicalClusters.GroupResource(), "x", errors.New("y"))))
	require.False(t, answered(apierrors.NewServiceUnavailable("starting")))
	require.False(t, answered(errors.New("connection refused")))
}
