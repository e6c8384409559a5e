package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// receivedKey is the context key of the counter of received bytes.
type receivedKey struct{}

type countingTransport struct {
	http.RoundTripper

	add func(int)
}

func (t *countingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err != nil || response.StatusCode == http.StatusSwitchingProtocols {
		return response, err
	}
	received, _ := request.Context().Value(receivedKey{}).(*atomic.Uint64)
	if received != nil || t.add != nil {
		response.Body = &countedBody{response.Body, received, t.add}
	}
	return response, nil
}

func (t *countingTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

type countedBody struct {
	io.ReadCloser

	received *atomic.Uint64
	add      func(int)
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.received != nil {
		b.received.Add(uint64(n)) //nolint:gosec // readers return no less than 0
	}
	if b.add != nil {
		b.add(n)
	}
	return n, err
}

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

// identityPlaceholder stands for the identity in URLs until requests are sent.
const identityPlaceholder = ":identity-of-export"

type exportIdentity struct {
	fetch  func(context.Context) (string, error)
	cached atomic.Value // a string; empty if it must be requested
}

// get returns the identity, and requests it if it is not cached. Concurrent requests are possible.
func (i *exportIdentity) get(ctx context.Context) (string, error) {
	if known, _ := i.cached.Load().(string); known != "" {
		return known, nil
	}
	known, err := i.fetch(ctx)
	if err == nil && known == "" {
		err = errNoIdentity
	}
	if err != nil {
		return "", fmt.Errorf("failed to get the identity of the resource: %w", err)
	}
	i.cached.Store(known)
	return known, nil
}

var errNoIdentity = errors.New("the identity is empty")

// fresh returns an identity with its own cache. A watch must not continue at the resourceVersion of a resource
// with another identity, so each follower must see each change.
func (i *exportIdentity) fresh() *exportIdentity {
	if i == nil {
		return nil
	}
	return &exportIdentity{fetch: i.fetch}
}

type identityTransport struct {
	http.RoundTripper
	*exportIdentity
}

func (t *identityTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	identity, err := t.get(request.Context())
	if err != nil {
		return nil, err
	}
	sent := request.Clone(request.Context())
	sent.URL.Path = strings.Replace(sent.URL.Path, identityPlaceholder, ":"+identity, 1)
	sent.URL.RawPath = ""
	response, err := t.RoundTripper.RoundTrip(sent)
	if err == nil && response.StatusCode == http.StatusNotFound {
		t.cached.CompareAndSwap(identity, "")
	}
	return response, err
}

func (t *identityTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
