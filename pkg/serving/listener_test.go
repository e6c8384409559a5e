package serving

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTrackingListenerClosesWhatIsLeft(t *testing.T) {
	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := newTrackingListener(inner)
	defer func() { _ = l.Close() }()

	dial := func() (client, server net.Conn) {
		client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", inner.Addr().String())
		require.NoError(t, err)
		server, err = l.Accept()
		require.NoError(t, err)
		return client, server
	}
	gone, goneServer := dial()
	require.NoError(t, goneServer.Close())
	left, _ := dial()
	require.Len(t, l.conns, 1, "a closed connection is forgotten")

	l.closeConns()
	require.Empty(t, l.conns)
	for _, client := range []net.Conn{gone, left} {
		_, err := client.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, client.Close())
	}
}
