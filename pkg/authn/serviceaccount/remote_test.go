package serviceaccount

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
)

func shardWith(t *testing.T, cluster string) *peers.Peer {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(r.URL.Path, "/clusters/"+cluster+"/") && strings.HasSuffix(r.URL.Path, "/robot") {
			_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"robot","namespace":"ns","uid":"`+cluster+`"}}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
	}))
	t.Cleanup(server.Close)
	return shardAt(t, server.URL)
}

func shardAt(t *testing.T, url string) *peers.Peer {
	t.Helper()
	clients, err := client.NewFactory(&rest.Config{Host: url})
	require.NoError(t, err)
	t.Cleanup(clients.CloseIdleConnections)
	return peers.NewPeer(url, clients)
}

// TestRemote checks that an account is found on any shard, and that NotFound requires the responses of all
// shards.
func TestRemote(t *testing.T) {
	stopped := httptest.NewServer(http.NotFoundHandler())
	stopped.Close()
	one, two, unreachable := shardWith(t, "one"), shardWith(t, "two"), shardAt(t, stopped.URL)
	for name, tc := range map[string]struct {
		shards  []*peers.Peer
		partial bool
		// want is the UID of the account, "" if it does not exist, or "?" if this is unknown.
		want string
	}{
		"found":                       {shards: []*peers.Peer{one, two}, want: "two"},
		"nowhere":                     {shards: []*peers.Peer{one}},
		"no shard":                    {},
		"found, one unreachable":      {shards: []*peers.Peer{unreachable, two}, want: "two"},
		"one unreachable":             {shards: []*peers.Peer{one, unreachable}, want: "?"},
		"not all shards known":        {shards: []*peers.Peer{one}, partial: true, want: "?"},
		"no shard known":              {partial: true, want: "?"},
		"found, not all shards known": {shards: []*peers.Peer{two}, partial: true, want: "two"},
	} {
		remote := NewRemote(func(logicalcluster.Name) ([]*peers.Peer, bool) { return tc.shards, !tc.partial })
		account, err := remote.ServiceAccount(t.Context(), "two", "ns", "robot")
		switch tc.want {
		case "":
			require.True(t, apierrors.IsNotFound(err), "%s: %v", name, err)
		case "?":
			require.Error(t, err, name)
			require.False(t, apierrors.IsNotFound(err), "%s: %v", name, err)
		default:
			require.NoError(t, err, name)
			require.Equal(t, tc.want, string(account.UID), name)
		}
	}
}
