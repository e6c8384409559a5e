package versions

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// counted returns an HTTP client whose calls h can cancel.
func counted(t *testing.T, h *Hooks) *http.Client {
	t.Helper()
	resolver := h.Resolver(func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return r })(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(string) (*rest.Config, error) {
			config := &rest.Config{}
			webhooktransport.Operator(config) // reads whole responses, like the one for tenants
			return config, nil
		},
	})
	config, err := resolver.ClientConfigFor("host")
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// TestHooks: Stop cancels current and future calls.
func TestHooks(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			arrived <- struct{}{}
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "answer")
	}))
	defer server.Close()
	h := NewHooks(nil, nil)
	client := counted(t, h)
	get := func(path string) (string, error) {
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
	data, err := get("/")
	require.NoError(t, err)
	require.Equal(t, "answer", data)

	gave := make(chan error, 1)
	go func() {
		_, err := get("/hangs")
		gave <- err
	}()
	<-arrived
	h.Stop()
	require.ErrorIs(t, <-gave, errHookStopped)
	_, err = get("/")
	require.ErrorIs(t, err, errHookStopped)
}
