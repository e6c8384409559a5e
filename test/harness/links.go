package harness

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Link is an address that leads to a server as long as it is connected, as a network
// between two places does.
type Link struct {
	// URL is the address.
	URL string

	mu     sync.Mutex
	server string // empty while it is cut
	open   map[net.Conn]struct{}
}

// NewLink returns a link that leads nowhere yet, and lasts until the test ends.
func NewLink(t testing.TB) *Link {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	l := &Link{URL: "https://" + listener.Addr().String(), open: map[net.Conn]struct{}{}}
	ctx := context.WithoutCancel(t.Context()) // servers end after it
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go l.pass(ctx, client)
		}
	}()
	return l
}

func (l *Link) pass(ctx context.Context, client net.Conn) {
	l.mu.Lock()
	server := l.server
	l.open[client] = struct{}{}
	l.mu.Unlock()
	if server == "" {
		_ = client.Close()
	} else {
		pass(ctx, client, []string{server}, 0)
	}
	l.mu.Lock()
	delete(l.open, client)
	l.mu.Unlock()
}

// Connect has the link lead to the server at a URL.
func (l *Link) Connect(url string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = strings.TrimPrefix(url, "https://")
}

// Cut ends all connections, and refuses others.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = ""
	for client := range l.open {
		_ = client.Close()
	}
}
