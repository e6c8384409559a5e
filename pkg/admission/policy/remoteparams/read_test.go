package remoteparams

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
)

// TestFromPeers checks that a read is limited, and that slow objects of a tenant do not make the shard
// unreachable.
func TestFromPeers(t *testing.T) {
	t.Parallel()
	const below = "/api/v1/namespaces/default/configmaps"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch strings.TrimPrefix(r.URL.Path, "/clusters/provider"+below) {
		case "/large":
			_, _ = w.Write(make([]byte, maxRead+1))
		case "/hangs":
			<-r.Context().Done()
		case "":
			_, _ = w.Write([]byte(r.URL.Query().Get("labelSelector")))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	clients, err := client.NewFactory(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	t.Cleanup(clients.CloseIdleConnections)
	peer := peers.NewPeer("far", clients)
	read := FromPeers(func(shard string) *peers.Peer { return map[string]*peers.Peer{"far": peer}[shard] })
	at := Location{Shard: "far", Cluster: "provider"}

	content, err := read(t.Context(), at, below, url.Values{"labelSelector": {"a in (b)"}})
	require.NoError(t, err)
	require.Equal(t, "a in (b)", string(content))
	_, err = read(t.Context(), at, below+"/none", nil)
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = read(t.Context(), at, below+"/large", nil)
	require.ErrorIs(t, err, errTooLarge)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = read(short, at, below+"/hangs", nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, peer.Allow(), "a slow request must not make the shard unreachable")

	_, err = read(t.Context(), Location{Shard: "other", Cluster: "provider"}, below, nil)
	require.ErrorIs(t, err, peers.ErrUnreachable)
	server.Close()
	_, err = read(t.Context(), at, below, nil)
	require.ErrorIs(t, err, peers.ErrUnreachable)
	require.False(t, peer.Allow(), "the shard must be unreachable")
}
