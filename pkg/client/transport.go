package client

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// receivedKey is the context key of the counter of received bytes.
type receivedKey struct{}

// firstWait bounds the time that a request waits for another one to establish the connection.
const firstWait = time.Second

// transport counts the received bytes of informers, and makes one request establish a connection before others are
// sent. HTTP/2 multiplexes all requests, but without a connection, http.Transport opens one per request. For
// example, 20 informers that start together would cause 20 TLS handshakes, of 4 KiB each.
type transport struct {
	http.RoundTripper

	// turn contains a value while a request establishes the connection.
	turn      chan struct{}
	connected chan struct{}
	connect   func()
}

func newTransport(to http.RoundTripper) *transport {
	connected := make(chan struct{})
	return &transport{to, make(chan struct{}, 1), connected, sync.OnceFunc(func() { close(connected) })}
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.send(r)
	received, counted := r.Context().Value(receivedKey{}).(*atomic.Uint64)
	if err == nil && counted && response.StatusCode != http.StatusSwitchingProtocols {
		response.Body = &countedBody{response.Body, received}
	}
	return response, err
}

func (t *transport) send(r *http.Request) (*http.Response, error) {
	if isClosed(t.connected) {
		return t.RoundTripper.RoundTrip(r)
	}
	timer := time.NewTimer(firstWait)
	defer timer.Stop()
	select {
	case <-t.connected:
	case <-timer.C:
	case <-r.Context().Done(): // the transport returns the error
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { t.connect() }}))
	}
	response, err := t.RoundTripper.RoundTrip(r)
	if err == nil { // not all transports call GotConn
		t.connect()
	}
	return response, err
}

func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

type countedBody struct {
	io.ReadCloser

	received *atomic.Uint64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.received.Add(uint64(n)) //nolint:gosec // readers return no less than 0
	return n, err
}
