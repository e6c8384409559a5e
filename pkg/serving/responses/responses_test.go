package responses

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/test/bubble"
)

// configuredHandler serves responses as configured, and reports failed writes.
type configuredHandler struct {
	serve func(w http.ResponseWriter, r *http.Request) error
	ended chan error
}

func (a configuredHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.ended <- a.serve(w, r)
}

// large writes more than any buffer can hold.
func large(w http.ResponseWriter, _ *http.Request) error {
	_, err := io.WriteString(w, strings.Repeat("x", 1<<20))
	return err
}

// small writes a response that is sent after the handler has returned.
func small(w http.ResponseWriter, _ *http.Request) error {
	_, err := io.WriteString(w, "x")
	return err
}

// stream is idle for a long time, and then writes.
func stream(w http.ResponseWriter, r *http.Request) error {
	select {
	case <-time.After(10 * longest):
	case <-r.Context().Done():
		return r.Context().Err()
	}
	return large(w, r)
}

// TestGuard checks that responses that are not read end after a deadline, together with their connection or stream.
func TestGuard(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		serve func(http.ResponseWriter, *http.Request) error
		lasts bool
		want  time.Duration
		fails bool
	}{
		"large":  {serve: large, want: longest, fails: true},
		"small":  {serve: small, want: stalled},
		"stream": {serve: stream, lasts: true, want: 10*longest + stalled, fails: true},
	} {
		for protocol, connect := range map[string]func(*testing.T, net.Conn, http.Handler) (waitClosed func() error){"HTTP/1.1": http1, "HTTP/2": http2Conn} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				bubble.Test(t, func(t *testing.T) {
					a := configuredHandler{serve: try.serve, ended: make(chan error, 1)}
					info := &apirequest.RequestInfo{}
					handler := WithGuard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						lasts := func(*http.Request, *apirequest.RequestInfo) bool { return try.lasts }
						WithStreams(a, lasts).ServeHTTP(w, r.WithContext(apirequest.WithRequestInfo(r.Context(), info)))
					}))
					client, server := net.Pipe()
					began := time.Now()
					waitClosed := connect(t, server, handler)
					_, err := io.WriteString(client, map[string]string{"HTTP/1.1": "GET / HTTP/1.1\r\nHost: test\r\n\r\n", "HTTP/2": http2.ClientPreface}[protocol])
					require.NoError(t, err)
					if protocol == "HTTP/2" {
						require.ErrorIs(t, reset(t, client), errReset)
					}
					if err := <-a.ended; try.fails {
						require.Error(t, err)
					}
					if protocol == "HTTP/1.1" {
						require.NoError(t, waitClosed())
					}
					require.Equal(t, try.want, time.Since(began))
					require.NoError(t, client.Close())
					require.NoError(t, waitClosed())
				})
			})
		}
	}
}

var errReset = errors.New("the stream was reset")

// reset sends a request without flow-control window, and returns how its stream ends.
func reset(t *testing.T, client net.Conn) error {
	t.Helper()
	framer := http2.NewFramer(client, bufio.NewReader(client))
	frames := make(chan http2.Frame, 100)
	go func() {
		defer close(frames)
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := frame.(*http2.RSTStreamFrame); ok {
				frames <- frame
			}
		}
	}()
	require.NoError(t, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	for _, header := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "test"}, {":path", "/"}} {
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: header[0], Value: header[1]}))
	}
	require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true, EndStream: true}))
	if _, ok := <-frames; ok {
		return errReset
	}
	return io.EOF
}

func http1(_ *testing.T, conn net.Conn, handler http.Handler) (waitClosed func() error) {
	ended := make(chan struct{})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Hour, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(ended)
		}
	}}
	conns := make(chan net.Conn, 1)
	conns <- conn
	l := &listener{conns: conns, done: make(chan struct{})}
	go func() { _ = server.Serve(l) }()
	return func() error {
		<-ended
		return server.Close()
	}
}

func http2Conn(_ *testing.T, conn net.Conn, handler http.Handler) (waitClosed func() error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&http2.Server{}).ServeConn(conn, &http2.ServeConnOpts{Handler: handler}) //nolint:staticcheck // a connection without TLS
	}()
	return func() error {
		<-ended
		return nil
	}
}

type listener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *listener) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

// blocking is a response with slow writes.
type blocking struct {
	*httptest.ResponseRecorder
	takes time.Duration
}

func (b blocking) Write(p []byte) (int, error) {
	time.Sleep(b.takes) //nolint:forbidigo // in a bubble
	return len(p), nil
}

// TestPause checks that a request is paused only while a write blocks.
func TestPause(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		takes  time.Duration
		size   int
		pauses int
	}{
		"quick":        {takes: pauseAfter / 2, size: unsent},
		"slow":         {takes: 2 * pauseAfter, size: unsent, pauses: 2},
		"not sent yet": {takes: 2 * pauseAfter, size: unsent / 3},
		"not blocked":  {size: unsent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) {
				pauses, paused := 0, false
				ctx := request.WithPause(context.WithoutCancel(t.Context()), func() func() {
					require.False(t, paused)
					pauses++
					paused = true
					return func() { paused = false }
				})
				handler := WithPause(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					for range 3 {
						_, err := w.Write(make([]byte, try.size))
						if err != nil || paused {
							t.Errorf("paused %t after a write: %v", paused, err)
						}
					}
				}))
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
				handler.ServeHTTP(blocking{httptest.NewRecorder(), try.takes}, r)
				require.Equal(t, try.pauses, pauses)
			})
		})
	}
}

// stuck is a response that is not read.
type stuck struct {
	*httptest.ResponseRecorder

	once    sync.Once
	givenUp chan struct{}
}

var errGivenUp = errors.New("write aborted")

func (s *stuck) Write([]byte) (int, error) {
	<-s.givenUp
	return 0, errGivenUp
}

func (s *stuck) SetWriteDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		s.once.Do(func() { close(s.givenUp) })
	}
	return nil
}

// isGivenUp serves a response that is not read, and reports whether it ends within d.
func isGivenUp(handling *sync.WaitGroup, handler http.Handler, r *http.Request, d time.Duration) bool {
	w := &stuck{ResponseRecorder: httptest.NewRecorder(), givenUp: make(chan struct{})}
	handling.Go(func() { handler.ServeHTTP(w, r) })
	time.Sleep(d) //nolint:forbidigo // in a bubble
	bubble.Wait()
	select {
	case <-w.givenUp:
		return true
	default:
		return false
	}
}

// requestOf returns a request of a user, of whom root is an administrator.
func requestOf(ctx context.Context, subject, query string, info apirequest.RequestInfo) *http.Request {
	groups := map[string][]string{"root": {user.SystemPrivilegedGroup}}
	ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: subject, Groups: groups[subject]})
	ctx = apirequest.WithRequestInfo(ctx, &info)
	return httptest.NewRequestWithContext(ctx, http.MethodGet, "/?"+query, http.NoBody)
}

// TestUnreadBytesAreLimited checks that the unread bytes are limited for each user and in total, that each user
// has a minimum, and that one response may have any size.
func TestUnreadBytesAreLimited(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		const mine = 40 << 10
		var handling sync.WaitGroup
		last := false
		paused := withPause(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := w.Write(make([]byte, r.ContentLength))
			if !errors.Is(err, errGivenUp) {
				t.Errorf("the write did not fail: %v", err)
			}
		}), newUnread(ledger.Bounds{Total: 4 * mine, User: 2 * mine, Own: mine / 2}))
		handler := WithGuard(WithStreams(paused, func(*http.Request, *apirequest.RequestInfo) bool { return last }))
		var pauses atomic.Int64
		isAborted := func(subject string, bytes int64) (givenUp bool) {
			ctx := request.WithPause(context.WithoutCancel(t.Context()), func() func() {
				pauses.Add(1)
				return func() { pauses.Add(-1) }
			})
			r := requestOf(ctx, subject, "", apirequest.RequestInfo{})
			r.ContentLength = bytes
			return isGivenUp(&handling, handler, r, 2*pauseAfter)
		}
		require.False(t, isAborted("jane", mine))
		require.False(t, isAborted("jane", mine))
		require.True(t, isAborted("jane", mine), "a response above the limit of the user must be aborted")
		require.True(t, isAborted("jane", mine/4), "a small response above the limit of the user must be aborted")
		require.False(t, isAborted("joe", 100*mine), "one response may have any size")
		require.True(t, isAborted("jim", mine), "a response above the total limit must be aborted")
		require.False(t, isAborted("jim", mine/2), "each user has a minimum")
		require.False(t, isAborted("root", 100*mine))
		last = true
		require.False(t, isAborted("jane", mine), "long-running requests have separate limits")
		last = false
		require.EqualValues(t, 6, pauses.Load())
		handling.Wait() // the guard ends the remaining ones
		require.Zero(t, pauses.Load())
		require.False(t, isAborted("jane", mine), "capacity must be released")
		handling.Wait()
	})
}

// TestForwarded checks that a fixed number of bytes counts for each forwarded response, including
// watches, and that slow clients are not considered as blocked.
func TestForwarded(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		const ahead = 8 << 10
		last := false
		writes := make([]byte, unsent+1)
		var handling sync.WaitGroup
		forwards := withForwarded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write(writes)
			if err != nil && !errors.Is(err, errGivenUp) {
				t.Errorf("unexpected error of a write: %v", err)
			}
		}), newUnread(ledger.Bounds{Total: 8 * ahead, User: 2 * ahead, Own: ahead}), ahead)
		handler := WithGuard(WithStreams(forwards, func(*http.Request, *apirequest.RequestInfo) bool { return last }))
		requestBy := func(subject string) *http.Request {
			return requestOf(context.WithoutCancel(t.Context()), subject, "", apirequest.RequestInfo{})
		}
		givenUp := func(subject string) bool {
			return isGivenUp(&handling, handler, requestBy(subject), 2*forwardedAfter)
		}
		for range 10 {
			w := blocking{httptest.NewRecorder(), forwardedAfter / 2}
			handling.Go(func() { handler.ServeHTTP(w, requestBy("jane")) })
		}
		handling.Wait()
		require.False(t, givenUp("jane"))
		last = true
		require.False(t, givenUp("jane"))
		require.True(t, givenUp("jane"), "watches must count")
		last = false
		require.True(t, givenUp("jane"), "other requests must count")
		require.False(t, givenUp("joe"))
		for range 10 {
			require.False(t, givenUp("root"))
		}
		handling.Wait() // the guard ends the remaining ones
		require.False(t, givenUp("jane"), "capacity must be released")
		handling.Wait()
	})
}

// TestWholeResponsesAreLimited checks that the number of responses that are encoded as a whole and compressed is limited.
func TestWholeResponsesAreLimited(t *testing.T) {
	t.Parallel()
	inside, goOn := make(chan bool), make(chan struct{})
	last := false
	paused := WithPause(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		inside <- r.Header.Get("Accept-Encoding") != ""
		<-goOn
	}))
	handler := WithGuard(WithStreams(paused, func(*http.Request, *apirequest.RequestInfo) bool { return last }))
	var handling sync.WaitGroup
	send := func(subject, accept, query, agent string) bool {
		r := requestOf(t.Context(), subject, query, apirequest.RequestInfo{IsResourceRequest: true})
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", "gzip")
		r.Header.Set("User-Agent", agent)
		handling.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), r) })
		return <-inside
	}
	packs := func(subject, accept string) bool { return send(subject, accept, "", "kubectl") }
	const table, plain = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/vnd.kubernetes.protobuf, application/json,*/*"
	require.True(t, packs("jane", table))
	require.True(t, packs("jane", "application/yaml"))
	require.False(t, packs("jane", table))
	require.False(t, packs("jane", "application/json; as =Table;v=v1;g=meta.k8s.io"))
	require.False(t, packs("jane", "application/json;pretty=1"))
	require.False(t, packs("jane", "application/cbor"))
	require.False(t, send("jane", plain, "pretty=true", "kubectl"))
	require.False(t, send("jane", "", "", "curl/8.5.0"))
	require.True(t, packs("jane", ""), "JSON lists are encoded object by object")
	require.True(t, packs("jane", plain), "protobuf lists are encoded object by object")
	require.True(t, packs("joe", table))
	last = true
	require.True(t, packs("jane", table), "watches are encoded event by event")
	last = false
	close(goOn)
	handling.Wait()
	goOn = make(chan struct{})
	require.True(t, packs("jane", table), "the limit must be released")
	close(goOn)
	handling.Wait()
}
