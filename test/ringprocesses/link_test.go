package ringprocesses

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// link is the connection of a member to the server.
type link struct {
	net.Listener

	mu sync.Mutex
	// cut rejects connections, and stalled forwards no data.
	cut, stalled bool
	connections  []net.Conn
}

func newLink(t *testing.T, server string) *link {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &link{Listener: listener}
	t.Cleanup(func() {
		_ = listener.Close()
		w.set(true, false)
	})
	go w.serve(t.Context(), server)
	return w
}

func (w *link) serve(ctx context.Context, server string) {
	for {
		local, err := w.Accept()
		if err != nil {
			return
		}
		remote, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
		if err != nil || !w.add(local, remote) {
			_ = local.Close()
			continue
		}
		go w.pass(local, remote)
		go w.pass(remote, local)
	}
}

// add stores a connection, unless the link is cut.
func (w *link) add(local, remote net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = remote.Close()
		return false
	}
	w.connections = append(w.connections, local, remote)
	return true
}

func (w *link) pass(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		for w.isStalled() {
			sleep(10 * time.Millisecond)
		}
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			if err != io.EOF { //nolint:errorlint // returned unwrapped by connections
				_ = from.Close()
			}
			return
		}
	}
}

func (w *link) isStalled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalled
}

func (w *link) set(cut, stalled bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut, w.stalled = cut, stalled; cut {
		for _, c := range w.connections {
			_ = c.Close()
		}
		w.connections = nil
	}
}
