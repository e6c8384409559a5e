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
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/test/bubble"
)

// busyListener does not accept connections before it is free, and counts them. Clients are
// connected meanwhile, and wait for handshakes.
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

// TestBurstConnections checks that many concurrent requests use few connections. One per request would
// exceed the limit of anonymous connections, so that the shard would close connections in use.
func TestBurstConnections(t *testing.T) {
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
		ctx, a := newAttempt(t.Context(), b.Peer, b.external)
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
				arrived.Done() // do not block the others
				return
			}
			_ = res.Body.Close()
		})
	}
	for _, a := range attempts {
		require.Eventually(t, a.isWaiting, timeout, time.Millisecond)
	}
	close(listener.free)
	sending.Wait()
	require.Less(t, int(listener.accepted.Load()), burst/2) // three, and those that had already been started
}

// TestUnneededDials checks that the number of concurrent dials is limited, and that no
// connection is made if no request waits for it.
func TestUnneededDials(t *testing.T) {
	b := newBackend(&peers.Peer{Name: "one", URL: "https://shard"}, &tls.Config{MinVersion: tls.VersionTLS12})
	errMade := errors.New("connection made")
	made, goOn := make(chan struct{}, 2*maxDials), make(chan struct{})
	dial := limitDials(func(context.Context, string, string, *tls.Config) (net.Conn, error) {
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
	attempt := func(ctx context.Context) (context.Context, *httptrace.ClientTrace) {
		ctx, _ = newAttempt(ctx, b.Peer, b.external)
		trace := httptrace.ContextClientTrace(ctx)
		trace.GetConn("")
		return ctx, trace
	}
	isWaiting, _ := attempt(t.Context())
	served, trace := attempt(t.Context())
	trace.GotConn(httptrace.GotConnInfo{})
	again, trace := attempt(t.Context())
	trace.GotConn(httptrace.GotConnInfo{})
	trace.GetConn("") // that connection was unusable
	ctx, cancel := context.WithCancel(t.Context())
	remaining, _ := attempt(ctx)
	cancel()
	needed, needless := []<-chan error{begin(isWaiting), begin(again)}, []<-chan error{begin(served), begin(remaining)}
	require.Empty(t, made)
	close(goOn)
	for _, done := range append(first, needed...) {
		require.ErrorIs(t, <-done, errMade)
	}
	for _, done := range needless {
		require.ErrorIs(t, <-done, errNotNeeded)
	}
}

// TestDialLimitTimeout checks that waiting for a dial times out, and that the shard is not
// considered as hanging, because clients can cause this.
func TestDialLimitTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		dial := limitDials(func(context.Context, string, string, *tls.Config) (net.Conn, error) {
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
		require.ErrorIs(t, err, errTooManyDials)
		require.Equal(t, dialTimeout, time.Since(began))
		require.False(t, isTimeout(err))
		close(goOn)
		making.Wait()
	})
}

// TestHangingShard checks that requests to a shard fail at once if connections time
// out, except for one that tests the connection.
func TestHangingShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.cluster(t, "one", "aaaa")
	w.ready(t, "aaaa", "one")
	alice := w.person(t, "alice")
	require.Equal(t, "one", alice.echoed(t, "/clusters/aaaa/api").Shard)
	refused := func() {
		t.Helper()
		res, body := alice.want(t, "/clusters/aaaa/api", http.StatusServiceUnavailable)
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		require.Contains(t, body, "the workspace's shard is not reachable, try again")
	}
	one := w.proxy.shards.backend("one")
	one.Observe(t.Context(), false, context.DeadlineExceeded)
	refused()
	require.Eventually(t, one.Allow, timeout, time.Millisecond, "a request must be allowed after the backoff")
	refused()
	one.Done()
	require.Equal(t, "one", alice.echoed(t, "/clusters/aaaa/api").Shard, "the request that tested the connection has ended")
	require.True(t, one.Allow())
	require.True(t, one.Allow(), "the shard must be reachable again")
	require.Equal(t, "root", alice.echoed(t, "/clusters/root/api").Shard)
}

// TestIsTimeout checks that a shard is not considered as hanging because of immediate errors, or of
// errors that clients can cause.
func TestIsTimeout(t *testing.T) {
	require.True(t, isTimeout(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}))
	require.False(t, isTimeout(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}))
	require.False(t, isTimeout(errors.New("net/http: invalid header field value")))
	require.False(t, isTimeout(io.ErrUnexpectedEOF))
}

// TestConnectionsOfRemovedShard checks that requests complete after the Shard object was
// deleted, and that all connections are closed afterwards.
func TestConnectionsOfRemovedShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.cluster(t, "one", "aaaa")
	inside, goOn := make(chan struct{}), make(chan struct{})
	shard := w.shards["one"]
	shard.handle(func(rw http.ResponseWriter, r *http.Request) {
		inside <- struct{}{}
		<-goOn
		shard.echo(rw, r)
	})
	w.ready(t, "aaaa", "one")
	response := w.person(t, "alice").async(t, "/clusters/aaaa/api")
	<-inside
	require.Positive(t, shard.connections())

	w.withdraw(t, "one")
	require.Eventually(t, func() bool { return w.proxy.shards.backend("one") == nil }, timeout, time.Millisecond)
	close(goOn)
	require.Contains(t, <-response, `"Shard":"one"`)
	require.Eventually(t, func() bool { return shard.connections() == 0 }, timeout, time.Millisecond)
}
