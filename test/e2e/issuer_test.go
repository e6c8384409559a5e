package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
)

// audience is the client ID of Shardplane at the issuer.
const audience = "shardplane"

// issuer is a dex process that a test starts and stops.
type issuer struct {
	t       *testing.T
	url     string
	ca      *pki.Pair
	serving *pki.Pair
	http    *http.Client
	process *exec.Cmd
}

// newIssuer returns an issuer that is not running.
func newIssuer(t *testing.T) *issuer {
	t.Helper()
	store := pki.NewStore(t.TempDir(), time.Now)
	ca, err := store.Authority("dex-ca")
	require.NoError(t, err)
	serving, err := store.Certificate("dex", ca, pki.Spec{CommonName: "dex", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.CertPEM)
	i := &issuer{t: t, url: fmt.Sprintf("https://127.0.0.1:%d", harness.FreePort(t)), ca: ca, serving: serving}
	i.http = &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
		// No server listens at the redirect URI.
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if strings.HasPrefix(r.URL.String(), i.url) {
				return nil
			}
			return http.ErrUseLastResponse
		},
	}
	t.Cleanup(i.http.CloseIdleConnections)
	return i
}

// start starts the issuer with new keys.
func (i *issuer) start() {
	i.t.Helper()
	i.process = exec.CommandContext(i.t.Context(), harness.Dex(i.t), "--issuer="+i.url, "--tls-cert-file="+i.serving.CertFile,
		"--tls-private-key-file="+i.serving.KeyFile, "--clients="+audience+",others", "--redirect-uri=http://client.invalid/")
	var log bytes.Buffer
	i.process.Stdout, i.process.Stderr = &log, &log
	require.NoError(i.t, i.process.Start())
	i.t.Cleanup(i.stop)
	require.Eventually(i.t, func() bool {
		response, err := i.http.Get(i.url + "/healthz") //nolint:noctx // a server of this test
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, testTimeout, 10*time.Millisecond, "dex did not start")
}

func (i *issuer) stop() {
	if i.process != nil {
		_ = i.process.Process.Kill()
		_ = i.process.Wait()
		i.process = nil
	}
}

// identity is a user of the issuer.
type identity struct {
	Username string   `json:"Username"`
	Groups   []string `json:"Groups"`
}

// token logs a user in, as a browser does, and returns the ID token from an endpoint of the issuer.
func (i *issuer) token(user identity, client, endpoint string) string {
	i.t.Helper()
	query := url.Values{
		"client_id": {client}, "redirect_uri": {"http://client.invalid/"}, "response_type": {"code"}, "scope": {"openid profile groups"}, "state": {"s"},
	}
	form, err := i.http.Get(i.url + "/auth?" + query.Encode()) //nolint:noctx // a server of this test
	require.NoError(i.t, err)
	require.NoError(i.t, form.Body.Close())
	login, err := json.Marshal(user)
	require.NoError(i.t, err)
	back, err := i.http.PostForm(form.Request.URL.String(), url.Values{"login": {string(login)}, "password": {"any"}}) //nolint:noctx // a server of this test
	require.NoError(i.t, err)
	require.NoError(i.t, back.Body.Close())
	at, err := back.Location()
	require.NoError(i.t, err)
	request, err := http.NewRequestWithContext(i.t.Context(), http.MethodPost, i.url+endpoint, strings.NewReader(url.Values{
		"grant_type": {"authorization_code"}, "code": {at.Query().Get("code")}, "redirect_uri": {"http://client.invalid/"},
	}.Encode()))
	require.NoError(i.t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.SetBasicAuth(client, client)
	response, err := i.http.Do(request)
	require.NoError(i.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(i.t, err)
	var tokens struct {
		IDToken string `json:"id_token"`
	}
	require.NoError(i.t, json.Unmarshal(body, &tokens), "%s", body)
	require.NotEmpty(i.t, tokens.IDToken, "%s", body)
	return tokens.IDToken
}

// configuration writes an AuthenticationConfiguration that trusts the issuer, and returns its file.
func (i *issuer) configuration() string {
	i.t.Helper()
	file := filepath.Join(i.t.TempDir(), "authentication.yaml")
	ca, err := json.Marshal(string(i.ca.CertPEM))
	require.NoError(i.t, err)
	require.NoError(i.t, os.WriteFile(file, fmt.Appendf(nil, `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: %q, audiences: [%q], certificateAuthority: %s}
  claimMappings:
    username: {claim: name, prefix: ""}
    groups: {claim: groups, prefix: ""}
    extra: [{key: example.com/subject, valueExpression: claims.sub}]
`, i.url, audience, ca), 0o600))
	return file
}
