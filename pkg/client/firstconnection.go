package client

import (
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// firstWait is how long a request waits at most for the connection that another one establishes.
const firstWait = time.Second

// firstConnection has one request establish a connection before others are sent. HTTP/2 sends all of them over
// one, but as long as there is none, http.Transport establishes one for each: informers of twenty kinds that
// start together would have twenty TLS handshakes, of 4 KiB each.
type firstConnection struct {
	http.RoundTripper

	// turn has what the request has put into it that establishes the connection.
	turn      chan struct{}
	connected chan struct{}
	once      sync.Once
}

func newFirstConnection(transport http.RoundTripper) *firstConnection {
	return &firstConnection{RoundTripper: transport, turn: make(chan struct{}, 1), connected: make(chan struct{})}
}

// RoundTrip implements http.RoundTripper.
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
	case <-r.Context().Done(): // which the transport says
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { t.connect() }}))
	}
	answer, err := t.RoundTripper.RoundTrip(r)
	if err == nil { // a transport need not tell of connections
		t.connect()
	}
	return answer, err
}

func (t *firstConnection) connect() { t.once.Do(func() { close(t.connected) }) }

// WrappedRoundTripper implements net.RoundTripperWrapper.
func (t *firstConnection) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
