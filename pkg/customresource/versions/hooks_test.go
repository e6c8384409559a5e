package versions

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// bounded is an HTTP client as webhooks are called with.
func bounded(t *testing.T, h *Hooks) *http.Client {
	t.Helper()
	resolver := h.Resolver(webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, nil, nil))(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(string) (*rest.Config, error) { return &rest.Config{}, nil },
	})
	config, err := resolver.ClientConfigFor("host")
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func TestHooks(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hangs":
			arrived <- struct{}{}
			<-r.Context().Done()
		case "/endless":
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		default:
			_, _ = io.WriteString(w, "answer")
		}
	}))
	defer server.Close()
	h := NewHooks()
	client := bounded(t, h)
	ask := func(path string) (string, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(r)
		if err != nil {
			return "", err
		}
		defer func() { require.NoError(t, response.Body.Close()) }()
		data, err := io.ReadAll(response.Body)
		return string(data), err
	}
	data, err := ask("/")
	require.NoError(t, err)
	require.Equal(t, "answer", data)
	data, err = ask("/endless")
	require.ErrorIs(t, err, errHookAnswer)
	require.Len(t, data, hookAnswerBytes)
	require.Empty(t, h.calls)

	gave := make(chan error, 1)
	go func() {
		_, err := ask("/hangs")
		gave <- err
	}()
	<-arrived
	h.Stop()
	require.ErrorIs(t, <-gave, errHookStopped)
	_, err = ask("/")
	require.ErrorIs(t, err, errHookStopped)
	require.Empty(t, h.calls)
}
