package harness

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
)

// Link forwards connections to a server while it is connected, like a network between two regions.
type Link struct {
	// URL is the URL of the link.
	URL string

	mu     sync.Mutex
	server string // "" if the link is cut
	open   map[net.Conn]struct{}
}

// NewLink returns a link that is cut. It is closed when the test ends.
func NewLink(t testing.TB) *Link {
	t.Helper()
	l := &Link{open: map[net.Conn]struct{}{}}
	l.URL = "https://" + listen(t, "127.0.0.1:0", l.pass)
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

// Connect forwards connections to the server at a URL.
func (l *Link) Connect(url string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = strings.TrimPrefix(url, "https://")
}

// Cut closes all connections, and rejects new ones.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = ""
	for client := range l.open {
		_ = client.Close()
	}
}
