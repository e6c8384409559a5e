package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

func TestCredentials(t *testing.T) {
	t.Parallel()
	// A private cluster, because the test replaces certificates and keys, and configures webhooks.
	d := newDecider(t)
	args := d.options(t)
	args["shard"] = append(args["shard"], "--home-workspaces-home-creator-groups=system:kcp:admin")
	e := kit.Start(t, harness.Options{DevTokens: true, ExtraArgs: args})
	proxy, masters := e.Proxy(), e.Shard(0)

	t.Run("privileged groups are removed", func(t *testing.T) {
		require.ElementsMatch(t, []string{"system:kcp:admin", "system:authenticated"}, kit.WhoAmI(t, proxy, "root").Groups)
		require.Contains(t, kit.WhoAmI(t, masters, "root").Groups, "system:masters", "the shard accepts the certificate")
		user := kit.WhoAmI(t, kit.AtHost(masters, proxy.Host), "root")
		require.Equal(t, "shard-admin", user.Username)
		require.Equal(t, []string{"system:authenticated"}, user.Groups)
		kit.RequireStatus(t, kit.AtHost(masters, proxy.Host), kit.Request{Path: "/clusters/root/api/v1/secrets"}, http.StatusForbidden)

		store := pki.NewStore(filepath.Join(e.Dir, ".kcp"), time.Now)
		ca, err := store.Authority("client-ca")
		require.NoError(t, err)
		pair, err := pki.NewStore(t.TempDir(), time.Now).Certificate("climber", ca,
			pki.Client("climber", "devs", "system:kcp:logical-cluster-admin", "system:kcp:external-logical-cluster-admin",
				"system:kcp:initializer:root:x", "system:kcp:terminator:root:x", "apis.kcp.io:binding:root:x"))
		require.NoError(t, err)
		for _, server := range []*rest.Config{proxy, masters} {
			user = kit.WhoAmI(t, kit.WithClientCert(server, pair), "root")
			require.ElementsMatch(t, []string{"devs", "system:authenticated"}, user.Groups)
		}
		// HTTP/1.1 would trim the group between front-proxy and shard.
		pair, err = pki.NewStore(t.TempDir(), time.Now).Certificate("blank", ca, pki.Client("climber", " system:masters"))
		require.NoError(t, err)
		for _, server := range []*rest.Config{proxy, masters} {
			require.Equal(t, http.StatusUnauthorized, codeOf(t, kit.WithClientCert(server, pair), "/clusters/root/api"))
		}
	})

	t.Run("development tokens", func(t *testing.T) {
		require.Contains(t, kit.WhoAmI(t, kit.WithToken(proxy, "admin-token"), "root").Groups, "system:masters")
		require.ElementsMatch(t, []string{"team-3", "system:authenticated"}, kit.WhoAmI(t, kit.WithToken(proxy, "user-3-token"), "root").Groups)
	})

	t.Run("home creator groups", func(t *testing.T) { testHomeCreators(t, e) })
	t.Run("webhooks", func(t *testing.T) { testExternalDeciders(t, kit.People{Env: e.ForTest(t)}, d) })
	t.Run("files are reloaded", func(t *testing.T) { reloading(t, e) })
}

func reloading(t *testing.T, e *kit.Env) {
	t.Helper()
	proxy, shard := e.Proxy(), e.Shard(0)
	dir := filepath.Join(e.Dir, ".kcp")
	store := pki.NewStore(dir, time.Now)

	// Add a client CA.
	others := pki.NewStore(t.TempDir(), time.Now)
	other, err := others.Authority("other-ca")
	require.NoError(t, err)
	pair, err := others.Certificate("jane", other, pki.Client("jane", "system:kcp:admin"))
	require.NoError(t, err)
	clients := []*rest.Config{kit.WithClientCert(proxy, pair), kit.WithClientCert(shard, pair)}
	for _, config := range clients {
		require.Equal(t, http.StatusUnauthorized, codeOf(t, config, "/clusters/root/api"))
	}
	bundle := harness.ReadFile(t, filepath.Join(dir, "client-ca.crt"))
	require.NoError(t, pki.WriteFile(filepath.Join(dir, "client-ca.crt"), append(bundle, other.CertPEM...), 0o644))
	for _, config := range clients {
		e.Eventually("the new CA is accepted", func() bool {
			// An open connection keeps its certificates.
			fresh := rest.CopyConfig(config)
			fresh.TLSClientConfig.NextProtos = []string{"http/1.1"}
			transport, err := rest.TransportFor(fresh)
			require.NoError(t, err)
			if closer, ok := transport.(interface{ CloseIdleConnections() }); ok {
				defer closer.CloseIdleConnections()
			}
			return codeOf(t, fresh, "/clusters/root/api") == http.StatusOK
		})
	}
	master, err := others.Certificate("master", other, pki.Client("master", "system:masters"))
	require.NoError(t, err)
	e.Eventually("the new CA is accepted by the cache server", func() bool {
		return codeOf(t, kit.WithClientCert(e.Cache(), master), "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards") == http.StatusOK
	})

	// Replace the serving certificate.
	before := served(t, proxy.Host)
	ca, err := store.Authority("serving-ca")
	require.NoError(t, err)
	fresh, err := pki.NewStore(t.TempDir(), time.Now).Certificate("apiserver", ca, pki.Spec{CommonName: "localhost", DNSNames: []string{"localhost"}, IPs: before.IPAddresses})
	require.NoError(t, err)
	require.NoError(t, pki.WriteFile(filepath.Join(dir, "apiserver.key"), fresh.KeyPEM, 0o600))
	require.NoError(t, pki.WriteFile(filepath.Join(dir, "apiserver.crt"), fresh.CertPEM, 0o644))
	for _, host := range []string{proxy.Host, shard.Host, e.Cache().Host} {
		e.Eventually("the new certificate is served at "+host, func() bool { return served(t, host).SerialNumber.Cmp(before.SerialNumber) != 0 })
	}

	// Replace the key of service accounts.
	c := harness.Clientset(t, proxy, "root")
	createServiceAccount(t, e, c, "robot")
	old := tokenOf(t, c, "robot", authenticationv1.TokenRequestSpec{})
	for _, config := range []*rest.Config{proxy, shard} {
		require.NotEqual(t, http.StatusUnauthorized, codeOf(t, kit.WithToken(config, old), "/clusters/root/api"))
	}
	require.NoError(t, pki.WriteFile(filepath.Join(dir, "service-account.key"), newKey(t), 0o600))
	for _, config := range []*rest.Config{proxy, shard} {
		e.Eventually("the old key is rejected", func() bool {
			return codeOf(t, kit.WithToken(config, old), "/clusters/root/api") == http.StatusUnauthorized
		})
	}
	e.Eventually("the new key signs", func() bool {
		token := tokenOf(t, c, "robot", authenticationv1.TokenRequestSpec{})
		return codeOf(t, kit.WithToken(proxy, token), "/clusters/root/api") == http.StatusOK
	})
}

func served(t *testing.T, host string) *x509.Certificate {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", strings.TrimPrefix(host, "https://")) //nolint:gosec // reads only the certificate
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

func newKey(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
