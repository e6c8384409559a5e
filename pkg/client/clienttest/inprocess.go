package clienttest

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"sync"

	"k8s.io/client-go/rest"
)

// inProcessConfig returns a client configuration whose requests h serves.
func inProcessConfig(h http.Handler) *rest.Config {
	return &rest.Config{Host: "http://in-process", Transport: inProcess{h}}
}

// inProcess is an http.RoundTripper that has a handler serve requests.
type inProcess struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	r = r.Clone(ctx)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := &response{header: http.Header{}, started: make(chan struct{}), cancel: cancel}
	w.changed.L = &w.mu
	go func() {
		t.handler.ServeHTTP(w, r)
		w.end(io.EOF)
	}()
	context.AfterFunc(ctx, func() { w.end(ctx.Err()) })
	select {
	case <-w.started:
		return &http.Response{
			StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/2.0", ProtoMajor: 2, Header: w.header, Body: w, Request: r, ContentLength: -1,
		}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// response is an http.ResponseWriter, and the body that its client reads.
type response struct {
	header  http.Header
	status  int
	once    sync.Once
	started chan struct{}
	cancel  context.CancelFunc

	mu      sync.Mutex
	changed sync.Cond
	written bytes.Buffer
	ended   error
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	w.once.Do(func() {
		w.status = status
		close(w.started)
	})
}

// Write implements http.ResponseWriter. It does not wait for the client.
func (w *response) Write(data []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended != nil {
		return 0, w.ended
	}
	w.changed.Broadcast()
	return w.written.Write(data)
}

// Flush implements http.Flusher.
func (w *response) Flush() { w.WriteHeader(http.StatusOK) }

func (w *response) end(why error) {
	w.WriteHeader(http.StatusOK)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = cmp.Or(w.ended, why)
	w.changed.Broadcast()
}

// Read implements io.Reader.
func (w *response) Read(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.written.Len() == 0 {
		if w.ended != nil {
			return 0, w.ended
		}
		w.changed.Wait()
	}
	return w.written.Read(data)
}

// Close implements io.Closer: it ends the request.
func (w *response) Close() error {
	w.cancel()
	return nil
}
