package workspace

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
)

func TestPlacer(t *testing.T) {
	var status, asked atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path != request.PlacementPath {
			t.Error("asked at " + r.URL.Path)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	clients, err := client.NewFactory(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	require.NoError(t, err)
	defer clients.CloseIdleConnections()

	for _, tc := range []struct {
		status  int
		places  bool
		unheard bool
	}{
		{status: http.StatusOK, places: true},
		{status: http.StatusNotFound},
		{status: http.StatusForbidden},
		{status: http.StatusServiceUnavailable, unheard: true},
	} {
		t.Run(http.StatusText(tc.status), func(t *testing.T) {
			p := &placer{peer: peers.NewPeer("there", clients)}
			status.Store(int32(tc.status)) //nolint:gosec // a status
			places, err := p.places(t.Context())
			require.Equal(t, tc.places, places)
			if tc.unheard {
				require.ErrorIs(t, err, peers.ErrUnreachable)
				return
			}
			require.NoError(t, err)

			// The answer holds for a while.
			before := asked.Load()
			status.Store(http.StatusInternalServerError)
			places, err = p.places(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.places, places)
			require.Equal(t, before, asked.Load())
			p.asked = time.Now().Add(-2 * placesFor)
			places, err = p.places(t.Context())
			require.Error(t, err)
			require.False(t, places)
		})
	}
}
