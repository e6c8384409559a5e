package client

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
)

// receivedKey is the context key of the counter of received bytes.
type receivedKey struct{}

func countReceived(ctx context.Context, received *atomic.Uint64) context.Context {
	return context.WithValue(ctx, receivedKey{}, received)
}

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
