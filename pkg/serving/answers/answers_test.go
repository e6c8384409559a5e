package answers

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

// answer serves what its field says, and tells when a write has failed.
type answer struct {
	serve func(w http.ResponseWriter, r *http.Request) error
	ended chan error
}

func (a answer) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.ended <- a.serve(w, r) }

// large writes more than fits anywhere.
func large(w http.ResponseWriter, _ *http.Request) error {
	_, err := io.WriteString(w, strings.Repeat("x", 1<<20))
	return err
}

// small writes what is sent when the handler has returned.
func small(w http.ResponseWriter, _ *http.Request) error {
	_, err := io.WriteString(w, "x")
	return err
}

// stream idles for long, and then writes.
func stream(w http.ResponseWriter, r *http.Request) error {
	select {
	case <-time.After(10 * longest):
	case <-r.Context().Done():
		return r.Context().Err()
	}
	return large(w, r)
}

// TestGuard holds that an answer that is not read is given up after a time, with the
// connection or the stream that it is on.
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
		for protocol, connect := range map[string]func(*testing.T, net.Conn, http.Handler) (gone func() error){"HTTP/1.1": http1, "HTTP/2": http2Conn} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				bubble.Test(t, func(t *testing.T) {
					a := answer{serve: try.serve, ended: make(chan error, 1)}
					info := &apirequest.RequestInfo{}
					handler := WithGuard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						lasts := func(*http.Request, *apirequest.RequestInfo) bool { return try.lasts }
						WithStreams(a, lasts).ServeHTTP(w, r.WithContext(apirequest.WithRequestInfo(r.Context(), info)))
					}))
					client, server := net.Pipe()
					began := time.Now()
					gone := connect(t, server, handler)
					_, err := io.WriteString(client, map[string]string{"HTTP/1.1": "GET / HTTP/1.1\r\nHost: test\r\n\r\n", "HTTP/2": http2.ClientPreface}[protocol])
					require.NoError(t, err)
					if protocol == "HTTP/2" {
						require.ErrorIs(t, reset(t, client), errReset)
					}
					if err := <-a.ended; try.fails {
						require.Error(t, err)
					}
					if protocol == "HTTP/1.1" {
						require.NoError(t, gone())
					}
					require.Equal(t, try.want, time.Since(began))
					require.NoError(t, client.Close())
					require.NoError(t, gone())
				})
			})
		}
	}
}

var errReset = errors.New("the stream was reset")

// reset sends a request whose answer has no room, and returns how its stream ends.
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

// http1 serves one connection by HTTP/1.1, and returns what waits for its end.
func http1(_ *testing.T, conn net.Conn, handler http.Handler) (gone func() error) {
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

// http2Conn is http1 for HTTP/2.
func http2Conn(_ *testing.T, conn net.Conn, handler http.Handler) (gone func() error) {
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

// listener accepts what is in conns.
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

// blocking is a response whose writes take as long as they are told.
type blocking struct {
	*httptest.ResponseRecorder
	takes time.Duration
}

func (b blocking) Write(p []byte) (int, error) {
	time.Sleep(b.takes) //nolint:forbidigo // in a bubble
	return len(p), nil
}

// TestPause holds that a request pauses while a write waits, and no longer.
func TestPause(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		takes  time.Duration
		size   int
		pauses int
	}{
		"quick":         {takes: pauseAfter / 2, size: unsent},
		"slow":          {takes: 2 * pauseAfter, size: unsent, pauses: 2},
		"not sent yet":  {takes: 2 * pauseAfter, size: unsent / 3},
		"nothing waits": {size: unsent},
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
