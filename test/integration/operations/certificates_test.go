package operations

import (
	"crypto/tls"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
)

// TestServingCertificates checks that front-proxy, shard and cache server select the certificate by server name, reload it from its
// file, and enforce the minimum TLS version.
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
		require.Empty(t, servedName(t, server, "other.example.com", tls.VersionTLS12), "TLS 1.2 is below the minimum")
	}
	renewed, err := pki.NewStore(t.TempDir(), time.Now).Certificate("other", ca, pki.Spec{CommonName: second, DNSNames: []string{"other.example.com"}})
	require.NoError(t, err)
	for from, to := range map[string]string{renewed.KeyFile: other.KeyFile, renewed.CertFile: other.CertFile} {
		content := harness.ReadFile(t, from)
		require.NoError(t, os.WriteFile(to, content, 0o600))
	}
	for _, server := range servers {
		e.Eventually("the renewed certificate is served", func() bool {
			return servedName(t, server, "other.example.com", tls.VersionTLS13) == second
		})
	}
}

// servedName returns the common name of the certificate for a server name, or "" if the TLS version is rejected.
func servedName(t *testing.T, server, name string, version uint16) string {
	t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{
		ServerName: name, InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, //nolint:gosec // reads only the name
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(server, "https://"))
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
}
