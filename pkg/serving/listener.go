package serving

import (
	"net"
	"sync"
)

// trackingListener knows the connections it has accepted, so that a server that
// has stopped can close those that are left: upstream's shutdown gives up on
// connections that were opened while it ran, and a client that keeps one would
// be told for ever that the server is shutting down. That matters where the
// process lives on.
type trackingListener struct {
	net.Listener

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newTrackingListener(l net.Listener) *trackingListener {
	return &trackingListener{Listener: l, conns: map[net.Conn]struct{}{}}
}

// Accept implements net.Listener.
func (l *trackingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, listener: l}
	l.mu.Lock()
	l.conns[tracked] = struct{}{}
	l.mu.Unlock()
	return tracked, nil
}

// closeConns closes the connections that are still open.
func (l *trackingListener) closeConns() {
	l.mu.Lock()
	left := make([]net.Conn, 0, len(l.conns))
	for conn := range l.conns {
		left = append(left, conn)
	}
	l.mu.Unlock()
	for _, conn := range left {
		_ = conn.Close()
	}
}

type trackedConn struct {
	net.Conn
	listener *trackingListener
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
