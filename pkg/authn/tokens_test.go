package authn_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const testTimeout = 20 * time.Second

// issuer is an OIDC provider over TLS.
type issuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey
	// keys is the number of keys so far.
	keys int
	// requested receives waiting requests, which proceed when released is closed.
	requested, released chan struct{}
}

// silent returns an issuer that does not respond before released is closed.
func silent(t *testing.T) *issuer {
	t.Helper()
	i := newIssuer(t)
	i.requested, i.released = make(chan struct{}, 1), make(chan struct{})
	return i
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	i.rotate(t)
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.released != nil {
			select {
			case i.requested <- struct{}{}:
			default:
			}
			select {
			case <-i.released:
			case <-r.Context().Done():
				return
			}
		}
		var response any
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			response = map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}}
		case "/keys":
			response = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: i.keyID(), Algorithm: "ES256", Use: "sig"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(response)
	}))
	t.Cleanup(i.Close)
	return i
}

// rotate replaces the key of the issuer.
func (i *issuer) rotate(t *testing.T) {
	t.Helper()
	var err error
	i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	i.keys++
}

func (i *issuer) keyID() string { return strconv.Itoa(i.keys) }

func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	return i.signed(t, jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: i.keyID()}}, claims)
}

func (i *issuer) signed(t *testing.T, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	require.NoError(t, err)
	all := map[string]any{"iss": i.URL, "aud": "shardplane", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	token, err := jwt.Signed(signer).Claims(all).CompactSerialize()
	require.NoError(t, err)
	return token
}

func (i *issuer) configuration(prefix, more string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
	return fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: %s
    audiences: [shardplane]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: %q}
    groups: {claim: groups, prefix: %q}
%s`, i.URL, strings.ReplaceAll(strings.TrimSpace(string(ca)), "\n", "\n      "), prefix, prefix, more)
}

// running returns the authentication and runs it.
func running(t *testing.T, o authn.Options, from authn.Sources) *authn.Authentication {
	t.Helper()
	a, err := authn.NewAuthentication(o, from)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return a
}

// userOf returns the user of a request with a token, or one without a name.
func userOf(ctx context.Context, a *authn.Authentication, token string) (user.Info, error) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api", http.NoBody)
	r.Header = bearer(token)
	response, ok, err := a.Authenticator.AuthenticateRequest(r)
	if !ok || err != nil {
		return &user.DefaultInfo{}, err
	}
	return response.User, nil
}

func nameOf(t *testing.T, a *authn.Authentication, token string) string {
	t.Helper()
	info, _ := userOf(t.Context(), a, token)
	return info.GetName()
}

// reloadsOf returns the number of reloads of the configuration with a result.
func reloadsOf(registry *prometheus.Registry, result string) float64 {
	what := map[string]string{"what": "authentication-config"}
	counts, _ := testutil.GetCounterValuesFromGatherer(registry, "shardplane_authentication_reloads_total", what, "result")
	return counts[result]
}

func requireRejected(t *testing.T, tokens authenticator.Token, want string, rejected ...string) {
	t.Helper()
	for _, token := range rejected {
		_, ok, err := tokens.AuthenticateToken(t.Context(), token)
		require.False(t, ok, token)
		require.ErrorContains(t, err, want, token)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, 10*time.Millisecond, what)
}

func TestOIDC(t *testing.T) {
	t.Parallel()
	provider := newIssuer(t)
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	write := func(content string) { require.NoError(t, os.WriteFile(file, []byte(content), 0o600)) }
	write(provider.configuration("oidc:", ""))
	o := authn.NewOptions()
	o.ClientCAFile, o.ConfigFile = newAuthority(t, "clients").file, file
	registry := prometheus.NewRegistry()
	a := running(t, o, authn.Sources{Metrics: registry})

	jane := provider.token(t, map[string]any{"groups": []string{"devs"}})
	eventually(t, "the token of the issuer is not accepted", func() bool { return nameOf(t, a, jane) == "oidc:jane" })
	info, err := userOf(t.Context(), a, jane)
	require.NoError(t, err)
	require.Equal(t, []string{"oidc:devs", "system:authenticated"}, info.GetGroups())
	for what, claims := range map[string]map[string]any{
		"another audience": {"aud": "others"},
		"another issuer":   {"iss": "https://others.test"},
		"expired":          {"exp": time.Now().Add(-time.Minute).Unix()},
	} {
		require.Empty(t, nameOf(t, a, provider.token(t, claims)), what)
	}
	parts := strings.Split(jane, ".")
	joan := strings.Split(provider.token(t, map[string]any{"sub": "joan"}), ".")
	unsigned := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	publicKey, err := x509.MarshalPKIXPublicKey(provider.key.Public())
	require.NoError(t, err)
	for what, forged := range map[string]string{
		"signed with another key": newIssuer(t).token(t, map[string]any{"iss": provider.URL}),
		"without a signature":     parts[0] + "." + parts[1] + ".",
		"with algorithm none":     unsigned + "." + parts[1] + ".",
		"with other claims":       parts[0] + "." + joan[1] + "." + parts[2],
		"signed with the public key as a secret": provider.signed(t, jose.SigningKey{
			Algorithm: jose.HS256, Key: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicKey}),
		}, nil),
	} {
		require.Empty(t, nameOf(t, a, forged), what)
	}

	t.Run("key rotation", func(t *testing.T) {
		former := provider.token(t, map[string]any{"sub": "former"})
		provider.rotate(t)
		joe := provider.token(t, map[string]any{"sub": "joe"})
		// The first request may still get the result of a fetch that started before the rotation.
		eventually(t, "the new key is not fetched", func() bool { return nameOf(t, a, joe) == "oidc:joe" })
		eventually(t, "the token with the removed key is still accepted", func() bool { return nameOf(t, a, former) == "" })
		jane = provider.token(t, map[string]any{"groups": []string{"devs"}})
	})
	t.Run("changed file", func(t *testing.T) {
		write(provider.configuration("changed:", ""))
		eventually(t, "the new prefix is not used", func() bool { return nameOf(t, a, jane) == "changed:jane" })
	})
	t.Run("issuer with reserved names", func(t *testing.T) {
		write(provider.configuration("system:serviceaccount:default:", ""))
		eventually(t, "the new prefix is not used", func() bool { return nameOf(t, a, jane) == "" })
		requireRejected(t, a.Tokens, "is reserved", jane)
		write(provider.configuration("changed:", ""))
		eventually(t, "the former prefix is not used", func() bool { return nameOf(t, a, jane) == "changed:jane" })
	})
	t.Run("invalid file", func(t *testing.T) {
		for _, broken := range []string{"", "{", "kind: Pod", provider.configuration("x:", "unknown: field\n"), provider.configuration("x:", "anonymous: {enabled: true}\n"),
			provider.configuration("x:", "    extra: [{key: authentication.kcp.io/cluster-name, valueExpression: \"'root'\"}]\n")} {
			before := reloadsOf(registry, "failure")
			write(broken)
			eventually(t, "the failure is not counted", func() bool { return reloadsOf(registry, "failure") > before })
			require.Equal(t, "changed:jane", nameOf(t, a, jane))
			_, err := authn.NewAuthentication(o, authn.Sources{})
			require.ErrorContains(t, err, "--authentication-config", "an invalid file must prevent the start")
		}
	})
	t.Run("issuer without a response", func(t *testing.T) {
		late := silent(t)
		release := sync.OnceFunc(func() { close(late.released) })
		t.Cleanup(release)
		successes := reloadsOf(registry, "success")
		write(late.configuration("late:", ""))
		joe := late.token(t, map[string]any{"sub": "joe"})
		select {
		case <-late.requested:
		case <-time.After(testTimeout):
			require.Fail(t, "no request to the new issuer")
		}
		for range 5 {
			require.Equal(t, "changed:jane", nameOf(t, a, jane))
			require.Empty(t, nameOf(t, a, joe))
		}
		release()
		eventually(t, "the token of the new issuer is not accepted", func() bool { return nameOf(t, a, joe) == "late:joe" })
		eventually(t, "the success is not counted", func() bool { return reloadsOf(registry, "success") > successes })
		require.Empty(t, nameOf(t, a, jane), "the token of the former issuer must be rejected")
	})
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	var calls, elsewhere atomic.Int32
	var broken atomic.Bool
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if r.URL.Path == "/elsewhere" {
			elsewhere.Add(1)
		}
		if broken.Load() {
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		}
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		switch review.Spec.Token {
		case "redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		case "blanks":
			_, _ = w.Write(bytes.Repeat([]byte{' '}, webhooktransport.MaxResponseBytes))
		}
		if name, ok := strings.CutPrefix(review.Spec.Token, "as "); ok {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: name}}
			if key, value, found := strings.Cut(name, "="); found {
				review.Status.User = authenticationv1.UserInfo{Username: "hook", Extra: map[string]authenticationv1.ExtraValue{key: {value}}}
			}
		}
		if review.Spec.Token == "good" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "hook", Groups: []string{"system:masters", "hooked", "system:kcp:initializer:x"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
`, server.URL, base64.StdEncoding.EncodeToString(ca)), 0o600))
	o := authn.NewOptions()
	o.ClientCAFile, o.WebhookConfigFile, o.DevTokens = newAuthority(t, "clients").file, file, true
	a := running(t, o, authn.Sources{})

	for range 3 {
		info, err := userOf(t.Context(), a, "good")
		require.NoError(t, err)
		require.Equal(t, "hook", info.GetName())
		require.Equal(t, []string{"hooked", "system:authenticated"}, info.GetGroups())
	}
	require.EqualValues(t, 1, calls.Load(), "responses must be cached")
	for range 3 {
		require.Empty(t, nameOf(t, a, "bad"))
	}
	require.EqualValues(t, 2, calls.Load(), "responses for unknown tokens must be cached")
	require.Equal(t, "user-1", nameOf(t, a, "user-1-token"))
	require.EqualValues(t, 2, calls.Load(), "local tokens must not be sent to the webhook")
	requireRejected(t, a.Tokens, "is reserved",
		"as system:serviceaccount:default:robot", "as system:apiserver", "as system:kcp:serviceaccount:root:default:robot")
	requireRejected(t, a.Tokens, "because servers use it for authorization",
		`as authorization.kcp.io/warrant={"groups":["system:masters"]}`, "as authentication.kcp.io/cluster-name=root")
	requireRejected(t, a.Reviewer(), "correct it in the source of the user", // HTTP headers would change them
		"as  jane", "as jane\t", `as Authorization.KCP.io/warrant={"groups":["system:masters"]}`, "as example.com/team= blue")
	response, ok, err := a.Tokens.AuthenticateToken(t.Context(), "as authentication.kcp.io/scopes=cluster:root")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []string{"cluster:root"}, response.User.GetExtra()["authentication.kcp.io/scopes"], "scopes must be kept, because they only restrict")
	broken.Store(true)
	require.Empty(t, nameOf(t, a, "another"))
	_, _, err = a.Reviewer().AuthenticateToken(t.Context(), "reviewed")
	require.ErrorContains(t, err, "see the log of the server")
	require.NotContains(t, err.Error(), "broken", "the error must not contain the response of the service")
	require.NotContains(t, err.Error(), server.Listener.Addr().String(), "the error must not contain the address of the service")
	broken.Store(false)
	var log strings.Builder
	verbose := klog.NewContext(t.Context(), funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{Verbosity: 10}))
	forgets := o
	forgets.WebhookCacheTTL = 0 // the cache hides the test's log
	_, _, err = running(t, forgets, authn.Sources{}).Tokens.AuthenticateToken(verbose, "as a-token-not-to-be-logged")
	require.NoError(t, err)
	require.NotContains(t, log.String(), "not-to-be-logged")
	requireRejected(t, a.Tokens, "the webhook returned", "redirect", "blanks")
	require.Zero(t, elsewhere.Load(), "a redirect was followed")
	require.Equal(t, "hook", nameOf(t, a, "good"))

	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"others"})
	_, ok, _ = a.Reviewer().AuthenticateToken(ctx, "good")
	require.False(t, ok, "the token must be rejected for other audiences")

	o.WebhookConfigFile += ".missing"
	_, err = authn.NewAuthentication(o, authn.Sources{})
	require.ErrorContains(t, err, "--authentication-token-webhook-config-file")
}

func TestGroupFilter(t *testing.T) {
	t.Parallel()
	all := []string{
		"system:masters", "devs", "system:kcp:logical-cluster-admin", "system:kcp:initializer:root:x", "system:kcp:terminator:root:x",
		"system:kcp:admin", "system:kcp:external-logical-cluster-admin", "apis.kcp.io:binding:root:x", "system:authenticated",
	}
	kept := []string{"devs", "system:kcp:admin", "system:authenticated"}
	require.Equal(t, kept, authn.GroupFilter{Drop: authn.DefaultDropGroups()}.Filter(all))
	require.Equal(t, all, authn.GroupFilter{}.Filter(all))
	require.Equal(t, []string{"devs"}, authn.GroupFilter{PassOn: []string{"d*", "system:masters"}, Drop: authn.DefaultDropGroups()}.Filter(all))
	require.Empty(t, authn.GroupFilter{Drop: []string{"*"}}.Filter(all))
	require.Equal(t, []string{"devs"}, authn.GroupFilter{Drop: []string{"*", "!devs"}}.Filter(all))
	require.Equal(t, []string{"system:kcp:admin"}, authn.GroupFilter{PassOn: []string{"system:kcp:*", "!system:kcp:logical-cluster-admin"}, Drop: authn.DefaultDropGroups()}.Filter(all))
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o := authn.NewOptions()
	require.Len(t, o.Validate(), 1, "a client CA must be required")
	o.ClientCAFile = "ca.crt"
	require.Empty(t, o.Validate())
	o.SigningKeyFile = "key"
	require.Empty(t, o.Validate())
	o.ServiceAccounts.Issuers = []string{"http://insecure.test", "kubernetes/serviceaccount", ""}
	o.MaxTokenLifetime = time.Minute
	require.Len(t, o.Validate(), 4)
}

// TestReviewer checks that a review in a logical cluster accepts only its own service accounts.
func TestReviewer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		user   string
		claims []string
		want   bool
	}{
		"no claim":          {},
		"one":               {claims: []string{"here"}, want: true},
		"foreign":           {claims: []string{"there"}},
		"several":           {claims: []string{"here", "there"}},
		"twice":             {claims: []string{"here", "here"}},
		"empty":             {claims: []string{""}},
		"no account":        {user: "jane", want: true},
		"user with a claim": {user: "jane", claims: []string{"there"}, want: true},
	} {
		info := &user.DefaultInfo{Name: "system:serviceaccount:ns:robot", Extra: map[string][]string{request.ExtraClusterName: tc.claims}}
		if tc.user != "" {
			info.Name = tc.user
		}
		a := &authn.Authentication{Tokens: authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: info}, true, nil
		})}
		_, ok, err := a.Reviewer().AuthenticateToken(request.WithClusterName(t.Context(), "here"), "token")
		require.Equal(t, tc.want, ok, name)
		require.Equal(t, tc.want, err == nil, name)
		_, ok, _ = a.Reviewer().AuthenticateToken(request.WithWildcard(t.Context()), "token")
		require.Equal(t, tc.user != "", ok, name)
	}
}
