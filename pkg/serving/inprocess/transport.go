// Package inprocess lets a server's clients of itself reach its handler without a
// connection. Controllers of a server send it most of the requests that it gets while
// tenants are quiet, and read all that it stores through watches; over a connection, to
// encrypt, frame, send, receive and decrypt that within one process is an eighth of the
// processor time of a new workspace.
//
// Requests go through the whole chain of the handler, as those from outside do. What
// differs is what belongs to connections: limits of their number do not count these, and
// there is no certificate, so that such a client authenticates by a bearer token.
package inprocess

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"sync"

	"k8s.io/klog/v2"
)

// remoteAddr is where these requests come from, in audit events for example.
const remoteAddr = "127.0.0.1:0"

var errStopped = errors.New("the server has stopped")

// Transport is an http.RoundTripper that gives requests to a handler. Until Serve is called
// requests wait, as they do for a server that has not opened its connections yet. It is safe
// for concurrent use.
type Transport struct {
	ready   chan struct{}
	handler http.Handler
	base    context.Context //nolint:containedctx // of all requests, as that of an http.Server
	cancel  context.CancelFunc

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// New returns a transport.
func New() *Transport {
	return &Transport{ready: make(chan struct{})}
}

// Serve has handler answer what was and will be sent. It is called once, and so is stop, with
// which requests end and others are refused; it returns when no handler runs any more. Requests
// have the values of ctx, and do not end with it.
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

// Own reports whether a request comes from a client in the process of its server.
func Own(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.begin(r.Context()); err != nil {
		closeBody(r)
		return nil, err
	}
	// The values of the caller's context are not those of the request: a caller may be a
	// handler itself.
	ctx, cancel := context.WithCancel(t.base)
	unlink := context.AfterFunc(r.Context(), cancel)
	answer := newAnswer(r.Context(), ctx, cancel)
	inner := received(r, ctx) //nolint:contextcheck // see above
	go func() {
		defer t.running.Done()
		defer closeBody(r)
		defer cancel()
		defer unlink()
		defer answer.end(r)
		t.handler.ServeHTTP(answer, inner)
	}()
	return answer.response(r)
}

// begin waits until requests are served, and counts one.
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

// CloseIdleConnections does nothing, as there are none: client-go warns of transports without it.
func (*Transport) CloseIdleConnections() {}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// received returns a request as a server gets it of what a client sends.
func received(r *http.Request, ctx context.Context) *http.Request { //nolint:revive // the context is the server's, not the client's
	inner := r.Clone(ctx)
	inner.Proto, inner.ProtoMajor, inner.ProtoMinor = "HTTP/2.0", 2, 0
	inner.RequestURI, inner.RemoteAddr = r.URL.RequestURI(), remoteAddr
	inner.URL.Scheme, inner.URL.Host = "", ""
	if inner.Host == "" {
		inner.Host = r.URL.Host
	}
	switch {
	case inner.Body == nil:
		inner.Body = http.NoBody
	case inner.Body != http.NoBody && inner.ContentLength == 0:
		inner.ContentLength = -1 // not known
	}
	return inner
}

// end is deferred around the handler.
func (a *answer) end(r *http.Request) {
	switch p := recover(); p {
	case nil:
		a.finish(nil)
	case http.ErrAbortHandler:
		a.finish(errAborted)
	default:
		klog.FromContext(r.Context()).Error(nil, "The handler of a request panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
		a.finish(errAborted)
	}
}
