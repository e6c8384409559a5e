package client

import (
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// firstWait bounds the time that a request waits for another one to establish the connection.
const firstWait = time.Second

// firstConnection makes one request establish a connection before others are sent. HTTP/2 multiplexes all
// requests, but without a connection http.Transport opens one per request: 20 informers that start together would
// cause 20 TLS handshakes, of 4 KiB each.
type firstConnection struct {
	http.RoundTripper

	// turn contains a value while a request establishes the connection.
	turn      chan struct{}
	connected chan struct{}
	once      sync.Once
}

func newFirstConnection(transport http.RoundTripper) *firstConnection {
	return &firstConnection{RoundTripper: transport, turn: make(chan struct{}, 1), connected: make(chan struct{})}
}

func (t *firstConnection) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-t.connected:
		return t.RoundTripper.RoundTrip(r)
	default:
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

func (t *firstConnection) connect()                               { t.once.Do(func() { close(t.connected) }) }
func (t *firstConnection) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
