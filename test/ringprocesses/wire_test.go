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

// wire is between a member and the server.
type wire struct {
	net.Listener

	mu sync.Mutex
	// cut refuses connections, and held passes nothing on.
	cut, held   bool
	connections []net.Conn
}

func newWire(t *testing.T, server string) *wire {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{Listener: listener}
	t.Cleanup(func() {
		_ = listener.Close()
		w.set(true, false)
	})
	go w.serve(t.Context(), server)
	return w
}

func (w *wire) serve(ctx context.Context, server string) {
	for {
		near, err := w.Accept()
		if err != nil {
			return
		}
		far, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
		if err != nil || !w.keep(near, far) {
			_ = near.Close()
			continue
		}
		go w.pass(near, far)
		go w.pass(far, near)
	}
}

// keep notes a connection; false if there are to be none.
func (w *wire) keep(near, far net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = far.Close()
		return false
	}
	w.connections = append(w.connections, near, far)
	return true
}

func (w *wire) pass(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		for w.isHeld() {
			hold(10 * time.Millisecond)
		}
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			if err != io.EOF { //nolint:errorlint // of a connection
				_ = from.Close()
			}
			return
		}
	}
}

func (w *wire) isHeld() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held
}

func (w *wire) set(cut, held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut, w.held = cut, held; cut {
		for _, c := range w.connections {
			_ = c.Close()
		}
		w.connections = nil
	}
}
