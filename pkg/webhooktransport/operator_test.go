package webhooktransport

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOperator: administrators' services get the credentials of their kubeconfig at any address, but can neither
// exhaust memory nor redirect the credentials.
func TestOperator(t *testing.T) {
	h := newHostile(t)
	client := h.operatorClient(t)
	ask := func(path string) (int, string, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.URL+path, http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer func() { require.NoError(t, response.Body.Close()) }()
		body, err := io.ReadAll(response.Body)
		return response.StatusCode, string(body), err
	}
	_, _, err := ask("/")
	require.NoError(t, err)
	require.Equal(t, "Bearer operators", (<-h.seen).Header.Get("Authorization"))

	code, body, err := ask("/fails")
	require.NoError(t, err)
	require.Equal(t, http.StatusInternalServerError, code)
	require.Contains(t, body, secret, "which is for the operator's log")

	for _, path := range []string{"/redirect", "/found"} {
		_, _, err = ask(path)
		require.ErrorContains(t, err, "redirects are not followed")
	}
	require.Zero(t, h.elsewhere.Load())

	for _, path := range []string{"/blanks", "/bomb"} {
		var err error
		took := allocates(func() { _, _, err = ask(path) })
		require.ErrorContains(t, err, "the webhook answered with more than 4194304 bytes", path)
		require.Less(t, took, uint64(blanks/2), path)
	}
	require.Less(t, <-h.plain, int64(MaxResponseBytes+inFlight))
}
