package isolation

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// watchTime is how long a stream is read.
	watchTime = 15 * time.Millisecond
	// requestTimeout is the timeout of other requests.
	requestTimeout = 20 * time.Second
	// maxBody is the maximum number of bytes read of a response body.
	maxBody = 4 << 20
)

// input is a request as text of HTTP/1.1, with $NAME$ for values that differ between runs.
type input struct {
	attacker, target int
	raw              string
	// wire sends the request over the network even if the handler is available. http2 sends it by
	// HTTP/2.
	wire, http2 bool
}

// target is a server to attack.
type target struct {
	name, host string
	// handler is the server without its listener, or nil for servers in other processes.
	handler http.Handler
}

func (w *world) newTargets() []*target {
	out := make([]*target, 0, 4)
	for _, name := range []string{frontProxy, "root", "shard-1", cacheServer} {
		out = append(out, &target{name: name, host: strings.TrimPrefix(w.Component(name).URL, "https://")})
	}
	return out
}

// useHandlers sets the handlers of the targets, so that requests do not use the network.
func (w *world) useHandlers() {
	for _, t := range w.targets {
		t.handler = w.Component(t.name).Handler()
	}
}

// render returns the complete text of a request.
func (w *world) render(in input, twin bool) string {
	head, body, _ := strings.Cut(w.expand(in.raw, twin), "\r\n\r\n")
	lower := strings.ToLower(head)
	var out strings.Builder
	out.WriteString(head)
	if token := w.attackers[in.attacker].bearer(); token != "" {
		out.WriteString("\r\nAuthorization: Bearer " + token)
	}
	if !strings.Contains(lower, "\r\nhost:") {
		out.WriteString("\r\nHost: " + w.targets[in.target].host)
	}
	if !strings.Contains(lower, "\r\ncontent-length:") && !strings.Contains(lower, "\r\ntransfer-encoding:") {
		fmt.Fprintf(&out, "\r\nContent-Length: %d", len(body))
	}
	out.WriteString("\r\n\r\n" + body)
	return out.String()
}

// future is a resource version that servers wait for until the request times out.
const future = "99999999999"

// isStream reports whether the response may be a stream or intentionally late.
func isStream(raw string) bool {
	return strings.Contains(strings.ToLower(raw), "watch") || strings.Contains(raw, future)
}

// errUnsent is returned for text that no HTTP server accepts as a request.
var errUnsent = errors.New("not a request")

// perform sends an input and returns the response.
func (w *world) perform(ctx context.Context, in input, twin bool) response {
	raw := w.render(in, twin)
	switch {
	case in.http2:
		return w.overHTTP2(ctx, in, raw)
	case in.wire, w.targets[in.target].handler == nil:
		return w.overTheWire(ctx, in, raw)
	default:
		return w.inProcess(ctx, in, raw)
	}
}

// overHTTP2 sends the request by HTTP/2, if Go's client accepts it.
func (w *world) overHTTP2(ctx context.Context, in input, raw string) response {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	if err != nil || !wellFormed(r) {
		return response{err: errUnsent}
	}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	transport := &http.Transport{TLSClientConfig: w.tlsConfig(in.attacker), Protocols: &protocols, DisableCompression: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	r.RequestURI, r.URL.Scheme, r.URL.Host = "", "https", w.targets[in.target].host
	res, err := transport.RoundTrip(r)
	if err != nil {
		return response{err: err}
	}
	defer func() { _ = res.Body.Close() }()
	if isStream(raw) {
		defer time.AfterFunc(20*watchTime, cancel).Stop()
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	return response{code: res.StatusCode, header: res.Header, body: body, err: err}
}

// inProcess passes the request to the handler, with the parser and the checks of net/http's server.
func (w *world) inProcess(ctx context.Context, in input, raw string) response {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	if err != nil || !wellFormed(r) {
		return response{err: errUnsent}
	}
	limit := requestTimeout
	if isStream(raw) {
		limit = watchTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r = r.WithContext(ctx)
	r.RemoteAddr = "127.0.0.1:40000"
	r.TLS = &tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13}
	if cert := w.attackers[in.attacker].cert; cert != nil {
		r.TLS.PeerCertificates = append(r.TLS.PeerCertificates, cert.Leaf)
	}
	rec := &recorder{done: ctx.Done(), header: http.Header{}, closeNotify: make(chan bool)}
	func() {
		defer func() {
			reason := recover()
			if err, ok := reason.(error); reason != nil && (!ok || !errors.Is(err, http.ErrAbortHandler)) {
				panic(reason)
			}
		}()
		w.targets[in.target].handler.ServeHTTP(rec, r)
	}()
	got := rec.response()
	got.err = ctx.Err() // the stream was cut off, or the response was late
	return got
}

// wellFormed implements the checks of net/http's server after parsing.
func wellFormed(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.ProtoAtLeast(1, 1) && r.Host == "" || r.Header.Get("Expect") != "" || strings.ContainsFunc(r.Host, isControl) {
		return false
	}
	for name, values := range r.Header {
		if name == "" || strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c) }) ||
			strings.ContainsFunc(strings.Join(values, ""), isControl) {
			return false
		}
	}
	return true
}

func isControl(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// recorder is the response writer of a request in process.
type recorder struct {
	done        <-chan struct{}
	closeNotify chan bool
	// hijacked waits for the goroutines that copy data after a protocol upgrade.
	hijacked sync.WaitGroup

	mu     sync.Mutex
	header http.Header
	sent   http.Header
	code   int
	body   bytes.Buffer
	ended  bool
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(code)
}

func (r *recorder) writeHeader(code int) {
	if r.code == 0 && !r.ended && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		r.code, r.sent = code, r.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(http.StatusOK)
	if !r.ended && r.body.Len() < maxBody {
		r.body.Write(p)
	}
	return len(p), nil
}

// Flush implements http.Flusher, which streams require.
func (r *recorder) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(http.StatusOK)
}

// CloseNotify implements http.CloseNotifier, which upstream's handlers require.
func (r *recorder) CloseNotify() <-chan bool { return r.closeNotify }

// Hijack implements http.Hijacker. Data that the server sends afterwards is appended to the body.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	client, server := net.Pipe()
	r.WriteHeader(http.StatusSwitchingProtocols)
	ended := make(chan struct{})
	r.hijacked.Go(func() {
		defer close(ended)
		_, _ = io.Copy(r, client) // until either side closes
	})
	r.hijacked.Go(func() {
		select {
		case <-r.done:
		case <-ended:
		}
		_ = client.Close()
	})
	return server, bufio.NewReadWriter(bufio.NewReader(server), bufio.NewWriter(server)), nil
}

func (r *recorder) response() response {
	r.hijacked.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true // a handler may write after its timeout
	if r.code == 0 {
		return response{code: http.StatusOK, header: http.Header{}}
	}
	return response{code: r.code, header: r.sent, body: r.body.Bytes()}
}

func (w *world) tlsConfig(attacker int, protocols ...string) *tls.Config {
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: protocols} //nolint:gosec // attackers do not verify servers
	if cert := w.attackers[attacker].cert; cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	return config
}

// connect opens a connection with a deadline.
func (w *world) connect(ctx context.Context, attacker, target int, protocol string) (net.Conn, error) {
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: requestTimeout}, Config: w.tlsConfig(attacker, protocol)}
	conn, err := dialer.DialContext(ctx, "tcp", w.targets[target].host)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(requestTimeout))
}

// overTheWire sends the text over a new connection.
func (w *world) overTheWire(ctx context.Context, in input, raw string) response {
	conn, err := w.connect(ctx, in.attacker, in.target, "http/1.1")
	if err != nil {
		return response{err: err}
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, raw); err != nil {
		return response{err: err}
	}
	method, _, _ := strings.Cut(raw, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return response{err: err}
	}
	defer func() { _ = res.Body.Close() }()
	if isStream(raw) {
		_ = conn.SetDeadline(time.Now().Add(20 * watchTime))
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	for name, values := range res.Trailer {
		res.Header[name] = append(res.Header[name], values...)
	}
	return response{code: res.StatusCode, header: res.Header, body: body, err: err}
}
