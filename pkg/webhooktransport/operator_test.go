package webhooktransport

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// TestOperator: administrators' services get the credentials of their kubeconfig at any address, but can neither
// exhaust memory nor redirect the credentials.
func TestOperator(t *testing.T) {
	h := newHostile(t)
	config := &rest.Config{BearerToken: "operators", TLSClientConfig: rest.TLSClientConfig{CAData: h.ca()}}
	Operator(config)
	client := httpClient(t, config)
	require.NoError(t, get(t, client, h.URL))
	require.Equal(t, "Bearer operators", (<-h.seen).Header.Get("Authorization"))

	code, body, err := send(t, client, h.URL+"/fails")
	require.NoError(t, err)
	require.Equal(t, http.StatusInternalServerError, code)
	require.Contains(t, body, secret, "the response must be available for the log")

	for _, path := range []string{"/redirect", "/found"} {
		require.ErrorContains(t, get(t, client, h.URL+path), "redirects are not followed")
	}
	require.Zero(t, h.elsewhere.Load())

	h.isBounded(t, func(path string) error { return get(t, client, h.URL+path) })
}
