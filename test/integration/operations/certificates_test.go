package operations

import (
	"crypto/tls"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/dev/pki"
)

// TestServingCertificates holds that clients get the certificate of the name
// that they ask for, from front-proxy, shard and cache server, a new one once
// its file has changed, and no TLS older than was asked for.
func TestServingCertificates(t *testing.T) {
	t.Parallel()
	e := sharedWithEverything(t)
	other := everything.sni
	ca, err := everything.store.Authority("sni-ca")
	require.NoError(t, err)
	loaded, err := tls.LoadX509KeyPair(other.CertFile, other.KeyFile)
	require.NoError(t, err)
	first := loaded.Leaf.Subject.CommonName
	second := first + "-renewed"
	servers := []string{e.Proxy().Host, e.Shard(0).Host, e.Cache().Host}
	for _, server := range servers {
		require.NotEqual(t, first, servedName(t, server, "", tls.VersionTLS13))
		require.Equal(t, first, servedName(t, server, "other.example.com", tls.VersionTLS13))
		require.Empty(t, servedName(t, server, "other.example.com", tls.VersionTLS12), "too old")
	}
	renewed, err := pki.NewStore(t.TempDir(), time.Now).Certificate("other", ca, pki.Spec{CommonName: second, DNSNames: []string{"other.example.com"}})
	require.NoError(t, err)
	for from, to := range map[string]string{renewed.KeyFile: other.KeyFile, renewed.CertFile: other.CertFile} {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, content, 0o600))
	}
	for _, server := range servers {
		e.Eventually("the renewed certificate is served", func() bool {
			return servedName(t, server, "other.example.com", tls.VersionTLS13) == second
		})
	}
}

// servedName returns the common name of the certificate that a server shows to
// clients that ask for name; empty if they cannot agree on a version.
func servedName(t *testing.T, server, name string, version uint16) string {
	t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{
		ServerName: name, InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, //nolint:gosec // asks only for the name
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(server, "https://"))
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
}
