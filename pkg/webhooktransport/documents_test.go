package webhooktransport

import (
	"crypto/x509"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDocuments(t *testing.T) {
	h := newHostile(t)
	roots := x509.NewCertPool()
	roots.AddCert(h.Certificate())
	nothing, err := NewDocuments("--issuer-cidrs", nil)
	require.NoError(t, err)
	loopback, err := NewDocuments("--issuer-cidrs", []string{"127.0.0.0/8"})
	require.NoError(t, err)
	_, err = NewDocuments("--issuer-cidrs", []string{"everywhere"})
	require.ErrorContains(t, err, "--issuer-cidrs")

	for url, want := range map[string]string{
		h.URL + "/redirect":                         "redirect (307), and redirects are not followed",
		h.URL + "/found":                            "redirect (302)",
		h.URL + "/fails":                            "status 500",
		h.URL + "/closes":                           "could not be read",
		h.URL + "/garbage":                          "could not be read",
		h.URL + "/bomb":                             "more than 1048576 bytes",
		h.URL + "/headers":                          "could not be read",
		"http://" + h.Listener.Addr().String():      "must be a URL that starts with https://",
		"https://u:p@" + h.Listener.Addr().String(): "without credentials",
	} {
		_, err := loopback.Get(t.Context(), url, roots)
		require.ErrorContains(t, err, want, url)
		require.NotContains(t, err.Error(), secret, url)
		require.NotContains(t, err.Error(), "127.0.0.1:", url)
	}
	require.Zero(t, h.elsewhere.Load(), "a redirect was followed")
	_, err = loopback.Get(t.Context(), h.URL+"/blanks", roots)
	require.ErrorContains(t, err, "more than 1048576 bytes")
	require.Less(t, <-h.plain, int64(blanks), "the response was read to the end")

	_, err = loopback.Get(t.Context(), h.URL, nil)
	require.ErrorContains(t, err, "x509:", "the CA must be checked")
	data, err := loopback.Get(t.Context(), h.URL, roots)
	require.NoError(t, err)
	require.NotEmpty(t, data)
	require.Empty(t, (<-h.seen).Header.Get("Authorization"))

	calls := h.calls.Load()
	_, port, err := net.SplitHostPort(h.Listener.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254", "10.0.0.1", "localhost", "nowhere.invalid"} {
		_, err := nothing.Get(t.Context(), "https://"+host+":"+port, roots)
		require.ErrorContains(t, err, "which the server's --issuer-cidrs does not allow", host)
	}
	require.Equal(t, calls, h.calls.Load(), "a request was sent to a private address")
}
