package noisyneighbors

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/client-go/rest"
)

// frames writes arbitrary frames to an HTTP/2 connection. It is not safe for concurrent use.
type frames struct {
	*http2.Framer

	conn   *tls.Conn
	config *rest.Config
	host   string
	block  bytes.Buffer
	encode *hpack.Encoder
	stream uint32
}

// newFrames opens a connection to the host of config without reading from it.
func newFrames(t *testing.T, config *rest.Config, settings ...http2.Setting) *frames {
	t.Helper()
	at, err := url.Parse(config.Host)
	require.NoError(t, err)
	secure, err := rest.TLSConfigFor(config)
	require.NoError(t, err)
	secure.ServerName = at.Hostname()
	secure.NextProtos = []string{http2.NextProtoTLS}
	// A small receive buffer, so that unread data stays in the buffers of the server.
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
	}}
	opened, err := dialer.DialContext(t.Context(), "tcp", at.Host)
	require.NoError(t, err)
	f := &frames{conn: tls.Client(opened, secure), config: config, host: at.Host, stream: 1}
	t.Cleanup(func() { _ = f.conn.Close() })
	require.NoError(t, f.conn.SetDeadline(time.Now().Add(testTimeout)))
	require.NoError(t, f.conn.HandshakeContext(t.Context()))
	_, err = io.WriteString(f.conn, http2.ClientPreface)
	require.NoError(t, err)
	f.Framer = http2.NewFramer(f.conn, f.conn)
	f.encode = hpack.NewEncoder(&f.block)
	require.NoError(t, f.WriteSettings(settings...))
	return f
}

// get writes the headers of a GET request, and returns its stream.
func (f *frames) get(path string, ends bool) (stream uint32, err error) {
	f.block.Reset()
	headers := []hpack.HeaderField{
		{Name: ":method", Value: http.MethodGet}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: f.host}, {Name: ":path", Value: path},
	}
	if f.config.BearerToken != "" {
		headers = append(headers, hpack.HeaderField{Name: "authorization", Value: "Bearer " + f.config.BearerToken})
	}
	for _, header := range headers {
		if err := f.encode.WriteField(header); err != nil {
			return 0, err
		}
	}
	stream = f.stream
	f.stream += 2
	return stream, f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.block.Bytes(), EndHeaders: true, EndStream: ends})
}

// readUntil reads frames until done returns true or the connection ends.
func (f *frames) readUntil(done func(http2.Frame) bool) error {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		if done(frame) {
			return nil
		}
	}
}

// floods checks that unlimited frames, and streams that are reset immediately, use no memory and
// goroutines of the server.
func floods(t *testing.T, w *world) {
	account := w.serviceAccount(t, "framing")
	_, path, found := strings.Cut(strings.TrimPrefix(account.config.Host, "https://"), "/")
	require.True(t, found)
	path = "/" + path + configMaps
	for _, name := range []string{"root", "front-proxy", "cache-server"} {
		config := rest.CopyConfig(account.config)
		config.Host = w.Component(name).URL
		config.TLSClientConfig = rest.TLSClientConfig{Insecure: true}
		for attack, run := range map[string]func(*testing.T, *frames, string){"resets": resets, "continuation": continuation, "pings": pings, "settings": settings} {
			t.Run(name+" "+attack, func(t *testing.T) {
				goroutines, before := runtime.NumGoroutine(), inUse()
				run(t, newFrames(t, config), path)
				require.Eventually(t, func() bool { return runtime.NumGoroutine() < goroutines+50 }, testTimeout, tick, "goroutines remain")
				require.Less(t, inUse(), before+32<<20, "memory remains in use")
				w.quiet.must(t, http.MethodGet, configMaps, "")
			})
		}
	}
}

// resets opens streams and resets them immediately.
func resets(t *testing.T, f *frames, path string) {
	const streams = 2000
	most, before := make(chan int), runtime.NumGoroutine()
	go func() {
		high := 0
		_ = f.readUntil(func(frame http2.Frame) bool {
			high = max(high, runtime.NumGoroutine())
			ping, ok := frame.(*http2.PingFrame)
			return ok && ping.IsAck()
		})
		most <- high
	}()
	var err error
	for range streams {
		var stream uint32
		if stream, err = f.get(path, true); err != nil {
			break
		}
		if err = f.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
			break
		}
	}
	if err == nil {
		_ = f.WritePing(false, [8]byte{})
	}
	high := <-most
	require.Less(t, high-before, 5*maxStreams, "too many goroutines while streams were opened and reset")
	require.NoError(t, f.conn.Close())
}

// flood writes until the server closes the connection.
func flood(t *testing.T, f *frames, most int, write func() error) {
	t.Helper()
	for range most {
		if err := write(); err != nil {
			return
		}
	}
	t.Fatalf("the server accepted %d frames", most)
}

func continuation(t *testing.T, f *frames, _ string) {
	go func() { _ = f.readUntil(func(http2.Frame) bool { return false }) }()
	part := bytes.Repeat([]byte{0x00, 0x01, 'a', 0x01, 'b'}, 3000) // a: b
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part}))
	flood(t, f, 2000, func() error { return f.WriteContinuation(1, false, part) })
}

func pings(t *testing.T, f *frames, _ string) {
	flood(t, f, 1_000_000, func() error { return f.WritePing(false, [8]byte{}) })
}

// settings writes many frames. The server may acknowledge them together, so that it need not close
// the connection.
func settings(t *testing.T, f *frames, _ string) {
	for range 50_000 {
		require.NoError(t, f.WriteSettings())
	}
	require.NoError(t, f.conn.Close())
}

// readers checks that requests use no seats while the attacker does not read their responses.
func readers(t *testing.T, w *world) {
	const maps, streams = 8, 20
	account := w.serviceAccount(t, "reading")
	for i := range maps {
		name := fmt.Sprintf("%s-large-%d", w.id, i)
		w.attacker.create(t, configMaps, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"large":"yes"}},"data":{"text":%q}}`, name, strings.Repeat("x", 200<<10)))
	}
	at, err := url.Parse(account.config.Host)
	require.NoError(t, err)
	path := at.Path + configMaps + "?labelSelector=large"
	for name, query := range map[string]string{"lists": "", "watches": "&watch=true&resourceVersion=0"} {
		t.Run(name, func(t *testing.T) {
			waiting := func() float64 { return w.metric(t, "shardplane_fairness_paused_requests") }
			paused := waiting()
			f := newFrames(t, account.config, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			var received atomic.Int64
			go func() {
				_ = f.readUntil(func(frame http2.Frame) bool {
					if _, ok := frame.(*http2.HeadersFrame); ok {
						received.Add(1)
					}
					return false
				})
			}()
			for range streams {
				_, err := f.get(path+query, true)
				require.NoError(t, err)
			}
			require.Eventually(t, func() bool {
				return received.Load() == streams
			}, testTimeout, tick, "unread responses occupy seats")
			if name == "lists" {
				require.Eventually(t, func() bool { return countersMatch(waiting()-paused == streams) }, testTimeout, tick)
			}
			w.attacker.must(t, http.MethodGet, configMaps+"?limit=1", "")
			w.quiet.must(t, http.MethodGet, configMaps, "")
			require.NoError(t, f.conn.Close())
			require.Eventually(t, func() bool { return countersMatch(waiting() == paused) }, testTimeout, tick)
		})
	}
}
