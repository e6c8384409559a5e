// Package inprocess provides a transport for clients of a server in its own process. An idle server gets most
// requests from its own controllers. Over a connection, encryption, framing and system calls would take an eighth of
// the processor time of creating a workspace.
//
// Requests pass through the complete handler chain. They are not counted as connections, and must have a bearer
// token, because there is no client certificate.
package inprocess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

const remoteAddr = "127.0.0.1:0"

var errStopped = errors.New("the server has stopped")

// Transport is an http.RoundTripper that calls a handler. Requests wait until Serve is called, like
// those to a server that has not opened its port. It is safe for concurrent use.
type Transport struct {
	ready   chan struct{}
	handler http.Handler
	base    context.Context //nolint:containedctx // of all requests, like the base context of http.Server
	cancel  context.CancelFunc

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// NewTransport returns a transport.
func NewTransport() *Transport { return &Transport{ready: make(chan struct{})} }

// Serve starts serving with handler. It must be called once. stop rejects new requests, ends all others, and returns
// when no handler is running. Requests have the values of ctx, but do not end with it.
func (t *Transport) Serve(ctx context.Context, handler http.Handler) (stop func()) {
	t.handler = handler
	t.base, t.cancel = context.WithCancel(context.WithValue(context.WithoutCancel(ctx), ownKey{}, true))
	close(t.ready)
	return func() {
		t.mu.Lock()
		t.stopped = true
		t.mu.Unlock()
		t.cancel()
		t.running.Wait()
	}
}

type ownKey struct{}

// Own reports whether a request comes from a client in the process of the server.
func Own(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.begin(r.Context()); err != nil {
		closeBody(r)
		return nil, err
	}
	// The values of the caller's context must not be used, because the caller may be a handler.
	ctx, cancel := context.WithCancel(t.base)
	unlink := context.AfterFunc(r.Context(), cancel)
	responseWriter := &responseWriter{client: r.Context(), ctx: ctx, cancel: cancel, header: http.Header{}}
	responseWriter.cond.L = &responseWriter.mu
	inner := received(r, ctx) //nolint:contextcheck // see above
	go func() {
		defer t.running.Done()
		defer closeBody(r)
		defer cancel()
		defer unlink()
		defer responseWriter.end(r)
		t.handler.ServeHTTP(responseWriter, inner)
	}()
	return responseWriter.response(r)
}

// begin waits until requests are served, and counts the request.
func (t *Transport) begin(ctx context.Context) error {
	select {
	case <-t.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return errStopped
	}
	t.running.Add(1)
	return nil
}

// CloseIdleConnections does nothing. client-go logs a warning for transports without it.
func (*Transport) CloseIdleConnections() {}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

func received(r *http.Request, ctx context.Context) *http.Request { //nolint:revive // the context is the server's, not the client's
	inner := r.Clone(ctx)
	inner.Proto, inner.ProtoMajor, inner.ProtoMinor = "HTTP/2.0", 2, 0
	inner.RequestURI, inner.RemoteAddr = r.URL.RequestURI(), remoteAddr
	inner.URL.Scheme, inner.URL.Host = "", ""
	inner.Host = cmp.Or(inner.Host, r.URL.Host)
	switch {
	case inner.Body == nil:
		inner.Body = http.NoBody
	case inner.Body != http.NoBody && inner.ContentLength == 0:
		inner.ContentLength = -1 // unknown
	}
	return inner
}

func (a *responseWriter) end(r *http.Request) {
	switch p := recover(); p {
	case nil:
		a.finish(nil)
	case http.ErrAbortHandler:
		a.finish(errAborted)
	default:
		klog.FromContext(r.Context()).Error(nil, "Request handler panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
		a.finish(errAborted)
	}
}

const (
	// unflushed is how many bytes are buffered until a flush, so that a short response has a length.
	unflushed = 32 << 10
	unread    = 256 << 10
	// kept is the maximum size of a buffer that is kept between reads.
	kept = 64 << 10
)

var errAborted = fmt.Errorf("the server aborted the response: %w", io.ErrUnexpectedEOF)

type responseWriter struct {
	client context.Context //nolint:containedctx // of the caller
	ctx    context.Context //nolint:containedctx // of the request
	cancel context.CancelFunc
	header http.Header // of the handler

	mu   sync.Mutex
	cond sync.Cond
	// status and sent are set when the handler writes the header.
	status int
	sent   http.Header
	// written are the unread bytes. The client may read them if shown is set.
	written []byte
	shown   bool
	spare   []byte // a buffer for reuse
	// err is why nothing more is written; io.EOF after the end. If cut is set, unread bytes are discarded.
	err error
	cut bool
}

func (a *responseWriter) Header() http.Header { return a.header }

func (a *responseWriter) WriteHeader(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(status)
}

func (a *responseWriter) writeHeader(status int) {
	if a.status == 0 && status >= http.StatusOK { // informational responses are not passed on
		a.status, a.sent = status, a.header.Clone()
	}
}

func (a *responseWriter) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(http.StatusOK)
	for done := 0; ; {
		if a.err != nil {
			return done, a.err
		}
		n := min(len(p)-done, unread-len(a.written))
		a.written = append(a.written, p[done:done+n]...)
		done += n
		if len(a.written) >= unflushed {
			a.show()
		}
		if done == len(p) {
			return done, nil
		}
		a.cond.Wait()
	}
}

// show makes the written bytes available to the client. The caller holds the lock.
func (a *responseWriter) show() {
	a.shown = true
	a.cond.Broadcast()
}

func (a *responseWriter) Flush() { _ = a.FlushError() }

func (a *responseWriter) FlushError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	a.writeHeader(http.StatusOK)
	a.show()
	return nil
}

// SetWriteDeadline ends the response if the deadline has passed. Others only apply to the data of a connection.
func (a *responseWriter) SetWriteDeadline(deadline time.Time) error {
	if !deadline.IsZero() && !deadline.After(time.Now()) {
		a.fail(os.ErrDeadlineExceeded)
	}
	return nil
}

func (a *responseWriter) CloseNotify() <-chan bool {
	closed := make(chan bool, 1)
	context.AfterFunc(a.ctx, func() { closed <- true })
	return closed
}

func (a *responseWriter) fail(err error) {
	a.mu.Lock()
	if !a.cut {
		a.err, a.cut = err, true
	}
	a.show()
	a.mu.Unlock()
	a.cancel()
}

// finish is called when the handler has returned. err is set if it was aborted.
func (a *responseWriter) finish(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return
	case err != nil:
		a.err = err
	case a.client.Err() != nil: // which may be the reason
		a.err, a.cut = context.Cause(a.client), true
	default:
		a.writeHeader(http.StatusOK)
		a.err = io.EOF
	}
	a.show()
}

// response returns the response when the handler has flushed, written enough, or returned.
func (a *responseWriter) response(r *http.Request) (*http.Response, error) {
	unlink := context.AfterFunc(a.client, func() { a.fail(context.Cause(a.client)) })
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.shown {
		a.cond.Wait()
	}
	if a.cut || a.status == 0 {
		unlink()
		return nil, a.err
	}
	length := int64(-1)
	if a.err == io.EOF { //nolint:errorlint // our own
		length = int64(len(a.written))
	} else if n, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	return &http.Response{
		Status: strconv.Itoa(a.status) + " " + http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: a.sent, ContentLength: length, Body: &body{responseWriter: a, unlink: unlink}, Request: r,
	}, nil
}

// body is the body of a response. Read and Close may be called concurrently, but each by one goroutine at a time.
type body struct {
	*responseWriter
	unlink  func() bool
	reading []byte
}

func (b *body) Read(p []byte) (int, error) {
	if len(b.reading) == 0 {
		if err := b.take(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.reading)
	b.reading = b.reading[n:]
	return n, nil
}

func (b *body) take() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil && (!b.shown || len(b.written) == 0) {
		b.cond.Wait()
	}
	if b.cut || len(b.written) == 0 {
		return b.err
	}
	if cap(b.spare) > kept {
		b.spare = nil
	}
	b.reading, b.written, b.spare = b.written, b.spare[:0], b.written
	b.shown = b.err != nil
	b.cond.Broadcast() // there is capacity again
	return nil
}

func (b *body) Close() error {
	b.unlink()
	b.fail(http.ErrBodyReadAfterClose)
	return nil
}
