package client_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/bubble"
)

// TestConcurrentFirstRequests: concurrent first requests share one connection.
func TestConcurrentFirstRequests(t *testing.T) {
	const requests = 20
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	factory := newFactory(t, config)
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() { assert.NoError(t, get(t.Context(), factory, server.URL)) })
	}
	wg.Wait()
	require.EqualValues(t, 1, connections.Load())
}

func get(ctx context.Context, factory *client.Factory, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := factory.HTTPClient().Do(r)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestFailingFirstConnection: a request waits only briefly for another one without a response, and not after its
// context has ended. If one fails, the next one connects.
func TestFailingFirstConnection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var requests atomic.Int64
		config := &rest.Config{Host: "http://server"}
		config.Wrap(func(http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if requests.Add(1); r.URL.Path == "/refused" {
					return nil, net.ErrClosed
				}
				<-r.Context().Done()
				return nil, context.Cause(r.Context())
			})
		})
		factory, err := client.NewFactory(config)
		require.NoError(t, err)
		require.ErrorIs(t, get(t.Context(), factory, "http://server/refused"), net.ErrClosed)

		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { assert.ErrorIs(t, get(ctx, factory, "http://server/hangs"), context.Canceled) })
		}
		bubble.Wait()
		require.EqualValues(t, 2, requests.Load(), "one request must have failed, and one must hang while another one waits")
		short, end := context.WithTimeout(ctx, time.Millisecond)
		defer end()
		require.ErrorIs(t, get(short, factory, "http://server/hangs"), context.DeadlineExceeded)
		time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
		require.EqualValues(t, 4, requests.Load())
		cancel()
		wg.Wait()
	})
}
