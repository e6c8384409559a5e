package frontproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/test/bubble"
)

// busyListener accepts nothing before it is free, and counts what it accepts. Clients are connected
// meanwhile, and wait for their handshakes.
type busyListener struct {
	net.Listener

	free     chan struct{}
	accepted atomic.Int32
}

func (l *busyListener) Accept() (net.Conn, error) {
	<-l.free
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

// TestBurstsMakeFewConnections holds that many requests at a time cost a shard hardly more connections
// than they have room on: one for each would be more than a shard bears of whom it does not know yet, and those
// that it closes then carry requests.
func TestBurstsMakeFewConnections(t *testing.T) {
	const burst = 240
	var arrived sync.WaitGroup
	arrived.Add(burst)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived.Done()
		arrived.Wait()
	}))
	listener := &busyListener{Listener: server.Listener, free: make(chan struct{})}
	server.Listener, server.EnableHTTP2, server.Config.ErrorLog = listener, true, quietLog
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	b := newBackend(&peers.Peer{Name: "one", URL: server.URL}, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
	t.Cleanup(b.retire)

	var sending sync.WaitGroup
	attempts := make([]*attempt, burst)
	for i := range attempts {
		ctx, a := b.attempt(t.Context())
		attempts[i] = a
		sending.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, io.NopCloser(strings.NewReader("{}")))
			if err != nil {
				t.Error(err)
				return
			}
			res, err := b.transport(false).RoundTrip(r)
			if err != nil {
				t.Error(err)
				arrived.Done() // the others are not to wait
				return
			}
			_ = res.Body.Close()
		})
	}
	require.Eventually(t, func() bool {
		for _, a := range attempts {
			if !a.waits() {
				return false
			}
		}
		return true
	}, timeout, time.Millisecond)
	close(listener.free)
	sending.Wait()
	require.Less(t, int(listener.accepted.Load()), burst/2) // three, and those that were begun meanwhile
}

// TestNoConnectionsForNobody holds that few connections are made at a time, and none for requests that wait for
// none any more.
func TestNoConnectionsForNobody(t *testing.T) {
	b := newBackend(&peers.Peer{Name: "one", URL: "https://shard"}, &tls.Config{MinVersion: tls.VersionTLS12})
	errMade := errors.New("it is made")
	made, goOn := make(chan struct{}, 2*maxDials), make(chan struct{})
	dial := few(func(context.Context, string, string, *tls.Config) (net.Conn, error) {
		made <- struct{}{}
		<-goOn
		return nil, errMade
	})
	begin := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := dial(context.WithoutCancel(ctx), "tcp", "shard:443", &tls.Config{MinVersion: tls.VersionTLS12})
			done <- err
		}()
		return done
	}
	var first []<-chan error
	for range maxDials {
		first = append(first, begin(t.Context()))
		<-made
	}
	waits, _ := b.attempt(t.Context())
	httptrace.ContextClientTrace(waits).GetConn("")
	served, _ := b.attempt(t.Context())
	httptrace.ContextClientTrace(served).GetConn("")
	httptrace.ContextClientTrace(served).GotConn(httptrace.GotConnInfo{})
	again, _ := b.attempt(t.Context())
	httptrace.ContextClientTrace(again).GotConn(httptrace.GotConnInfo{})
	httptrace.ContextClientTrace(again).GetConn("") // that one was of no use
	ctx, leave := context.WithCancel(t.Context())
	left, _ := b.attempt(ctx)
	httptrace.ContextClientTrace(left).GetConn("")
	leave()
	needed, needless := []<-chan error{begin(waits), begin(again)}, []<-chan error{begin(served), begin(left)}
	require.Empty(t, made)
	close(goOn)
	for _, done := range append(first, needed...) {
		require.ErrorIs(t, <-done, errMade)
	}
	for _, done := range needless {
		require.ErrorIs(t, <-done, errSuperfluous)
	}
}

// TestNoPlaceIsNoNewsOfAShard holds that who finds no place to make a connection is told so in time, and that the
// shard does not count as one that hangs, as clients can fill the places.
func TestNoPlaceIsNoNewsOfAShard(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		dial := few(func(context.Context, string, string, *tls.Config) (net.Conn, error) {
			<-goOn
			return nil, net.ErrClosed
		})
		var making sync.WaitGroup
		for range maxDials {
			making.Go(func() { _, _ = dial(t.Context(), "tcp", "shard:443", &tls.Config{MinVersion: tls.VersionTLS12}) })
		}
		bubble.Wait()
		began := time.Now()
		_, err := dial(t.Context(), "tcp", "shard:443", &tls.Config{MinVersion: tls.VersionTLS12})
		require.ErrorIs(t, err, errNoPlace)
		require.Equal(t, dialTimeout, time.Since(began))
		require.False(t, hangs(err))
		close(goOn)
		making.Wait()
	})
}
