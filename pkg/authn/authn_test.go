package authn_test

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	certutil "k8s.io/client-go/util/cert"

	"github.com/shardplane/shardplane/pkg/authn"
)

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name}, key)
	require.NoError(t, err)
	content, err := certutil.EncodeCertificates(cert)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), name+".crt")
	require.NoError(t, certutil.WriteCert(file, content))
	return authority{cert: cert, key: key, file: file}
}

func (a authority) issue(t *testing.T, name string, groups ...string) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.key.Public(), a.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// certificates are the options of a server with client certificates only.
func certificates(caFile string) authn.Options {
	return authn.Options{UserOptions: authn.UserOptions{ClientCertificateOptions: authn.ClientCertificateOptions{ClientCAFile: caFile}}}
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	clients, proxies, strangers := newAuthority(t, "clients"), newAuthority(t, "proxies"), newAuthority(t, "strangers")
	var o authn.Options
	o.ClientCAFile, o.RequestHeaderCAFile, o.DevTokens = clients.file, proxies.file, true
	authentication, err := authn.NewAuthentication(o, authn.Sources{})
	require.NoError(t, err)
	require.Len(t, authentication.CAs, 2)

	forged := http.Header{authn.HeaderUser: {"root"}, authn.HeaderGroup: {user.SystemPrivilegedGroup}}
	for _, tc := range []struct {
		name, path, user string
		cert             *x509.Certificate
		header           http.Header
		groups           []string
		extra            map[string][]string
		refused, failed  bool
	}{
		{name: "client certificate", cert: clients.issue(t, "ann", "team"), user: "ann", groups: []string{"team", user.AllAuthenticated}},
		{name: "client certificate with forged headers", cert: clients.issue(t, "ann", "team"), header: forged, user: "ann", groups: []string{"team", user.AllAuthenticated}},
		{name: "front-proxy", cert: proxies.issue(t, "front-proxy"),
			header: http.Header{authn.HeaderUser: {"bob"}, authn.HeaderGroup: {"a", "b"}, authn.HeaderExtraPrefix + "Color": {"red"}},
			user:   "bob", groups: []string{"a", "b", user.AllAuthenticated}, extra: map[string][]string{"color": {"red"}}},
		{name: "front-proxy without a user", cert: proxies.issue(t, "front-proxy"), refused: true},
		{name: "unknown certificate", cert: strangers.issue(t, "eve", user.SystemPrivilegedGroup), failed: true},
		{name: "unknown certificate with forged headers", cert: strangers.issue(t, "eve"), header: forged, failed: true},
		{name: "certificate with the name of a service account", cert: clients.issue(t, "system:serviceaccount:default:robot"), failed: true},
		{name: "certificate with the global name of a service account", cert: clients.issue(t, "system:kcp:serviceaccount:a:default:robot"), failed: true},
		{name: "certificate with system groups", cert: clients.issue(t, "ann", "team", "system:kcp:admin", "system:kcp:logical-cluster-admin", "system:kcp:initializer:root:x",
			"system:kcp:external-logical-cluster-admin", "apis.kcp.io:binding:root:x", "system:serviceaccounts", "system:serviceaccounts:default", "system:cluster:root",
			user.SystemPrivilegedGroup), user: "ann",
			groups: []string{"team", user.SystemPrivilegedGroup, "system:kcp:admin", user.AllAuthenticated}},
		{name: "certificate with a space before the group", cert: clients.issue(t, "ann", " system:masters"), failed: true},
		{name: "certificate with a control character", cert: clients.issue(t, "ann\t", "team"), failed: true},
		{name: "front-proxy with a space after the group", cert: proxies.issue(t, "front-proxy"),
			header: http.Header{authn.HeaderUser: {"bob"}, authn.HeaderGroup: {"system:masters "}}, failed: true},
		{name: "headers without a certificate", header: forged, refused: true},
		{name: "user token", header: bearer("user-3-token"), user: "user-3", groups: []string{"team-3", user.AllAuthenticated}},
		{name: "admin token", header: bearer("admin-token"), user: "admin", groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
		{name: "wrong token", header: bearer("user-6-token"), failed: true},
		{name: "WebSocket token", header: webSocket("user-3-token", "v4.channel.k8s.io"), user: "user-3", groups: []string{"team-3", user.AllAuthenticated}},
		{name: "wrong WebSocket token", header: webSocket("user-6-token", "v4.channel.k8s.io"), failed: true},
		{name: "WebSocket token without another protocol", header: webSocket("user-3-token"), failed: true},
		{name: "WebSocket token without an upgrade", header: http.Header{"Sec-Websocket-Protocol": webSocket("user-3-token", "v4.channel.k8s.io")["Sec-Websocket-Protocol"]}, refused: true},
		{name: "anonymous", refused: true},
		{name: "anonymous, probe", path: "/readyz", user: user.Anonymous, groups: []string{user.AllUnauthenticated}},
		{name: "anonymous, below a probe", path: "/readyz/etcd", refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, cmp.Or(tc.path, "/api"), http.NoBody)
			maps.Copy(r.Header, tc.header.Clone())
			r.TLS = &tls.ConnectionState{}
			if tc.cert != nil {
				r.TLS.PeerCertificates = []*x509.Certificate{tc.cert}
			}
			got, ok, err := authentication.Authenticator.AuthenticateRequest(r)
			if tc.refused || tc.failed {
				require.False(t, ok)
				require.Equal(t, tc.failed, err != nil, "%v", err)
				return
			}
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, tc.user, got.User.GetName())
			require.Equal(t, tc.groups, got.User.GetGroups())
			if tc.extra != nil {
				require.Equal(t, tc.extra, got.User.GetExtra())
			}
		})
	}
}

// TestDropGroups checks that operators can configure the groups that external users must not have.
func TestDropGroups(t *testing.T) {
	t.Parallel()
	clients := newAuthority(t, "clients")
	for _, test := range []struct{ drop, want []string }{
		{nil, []string{user.SystemPrivilegedGroup, "system:kcp:admin"}},
		{[]string{}, []string{user.SystemPrivilegedGroup, "system:kcp:admin", "system:kcp:other"}},
		{[]string{"system:*", "!system:kcp:other"}, []string{user.SystemPrivilegedGroup, "system:kcp:other"}},
	} {
		o := certificates(clients.file)
		o.DropGroups = test.drop
		authentication, err := authn.NewAuthentication(o, authn.Sources{})
		require.NoError(t, err)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api", http.NoBody)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{clients.issue(t, "ann", user.SystemPrivilegedGroup, "system:kcp:admin", "system:kcp:other")}}
		got, ok, err := authentication.Authenticator.AuthenticateRequest(r)
		require.NoError(t, err)
		require.True(t, ok)
		require.ElementsMatch(t, append(test.want, user.AllAuthenticated), got.User.GetGroups())
	}
}

func TestDevTokensAreOffByDefault(t *testing.T) {
	t.Parallel()
	authentication, err := authn.NewAuthentication(certificates(newAuthority(t, "clients").file), authn.Sources{})
	require.NoError(t, err)
	info, err := userOf(t.Context(), authentication, "admin-token")
	require.NoError(t, err)
	require.Empty(t, info.GetName())
}

func TestUnreadableCA(t *testing.T) {
	t.Parallel()
	garbage := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(garbage, []byte("no certificate"), 0o600))
	for _, file := range []string{garbage, garbage + ".missing"} {
		_, err := authn.NewAuthentication(certificates(file), authn.Sources{})
		require.ErrorContains(t, err, "--client-ca-file")
	}
}

// webSocket returns the headers of a browser that opens a WebSocket with a token.
func webSocket(token string, protocols ...string) http.Header {
	encoded := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
	return http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {strings.Join(append([]string{encoded}, protocols...), ", ")}}
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
