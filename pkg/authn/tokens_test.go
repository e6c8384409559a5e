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
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	// poll is the interval at which tests check conditions.
	poll        = 10 * time.Millisecond
	testTimeout = 20 * time.Second
)

// issuer is an OIDC provider over TLS.
type issuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey
	// keys is the number of keys so far.
	keys int
	// asked receives waiting requests, which are answered when answers is closed.
	asked, answers chan struct{}
}

// silent returns an issuer that does not respond before answers is closed.
func silent(t *testing.T) *issuer {
	t.Helper()
	i := newIssuer(t)
	i.asked, i.answers = make(chan struct{}, 1), make(chan struct{})
	return i
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	i.rotate(t)
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.answers != nil {
			select {
			case i.asked <- struct{}{}:
			default:
			}
			select {
			case <-i.answers:
			case <-r.Context().Done():
				return
			}
		}
		var answer any
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			answer = map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}}
		case "/keys":
			answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: i.keyID(), Algorithm: "ES256", Use: "sig"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
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
	a, err := authn.New(o, from)
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

func whose(t *testing.T, a *authn.Authentication, token string) (string, []string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api", http.NoBody)
	r.Header = bearer(token)
	response, ok, err := a.Authenticator.AuthenticateRequest(r)
	if !ok || err != nil {
		return "", nil
	}
	return response.User.GetName(), response.User.GetGroups()
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, poll, what)
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
	eventually(t, "the issuer is known", func() bool { name, _ := whose(t, a, jane); return name == "oidc:jane" })
	_, groups := whose(t, a, jane)
	require.Equal(t, []string{"oidc:devs", "system:authenticated"}, groups)
	for what, claims := range map[string]map[string]any{
		"another audience": {"aud": "others"},
		"another issuer":   {"iss": "https://others.test"},
		"expired":          {"exp": time.Now().Add(-time.Minute).Unix()},
	} {
		name, _ := whose(t, a, provider.token(t, claims))
		require.Empty(t, name, what)
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
		name, _ := whose(t, a, forged)
		require.Empty(t, name, what)
	}

	t.Run("an issuer changes its key", func(t *testing.T) {
		former := provider.token(t, map[string]any{"sub": "former"})
		provider.rotate(t)
		joe := provider.token(t, map[string]any{"sub": "joe"})
		// The first request may still get the result of a fetch that started before the rotation.
		eventually(t, "it has not said for how long its keys are good, so it is asked again", func() bool { name, _ := whose(t, a, joe); return name == "oidc:joe" })
		eventually(t, "what is signed with a key that it no longer has is refused", func() bool { name, _ := whose(t, a, former); return name == "" })
		jane = provider.token(t, map[string]any{"groups": []string{"devs"}})
	})
	t.Run("a changed file takes over", func(t *testing.T) {
		write(provider.configuration("changed:", ""))
		eventually(t, "the new prefix", func() bool { name, _ := whose(t, a, jane); return name == "changed:jane" })
	})
	t.Run("no issuer makes system users", func(t *testing.T) {
		write(provider.configuration("system:serviceaccount:default:", ""))
		eventually(t, "the new prefix", func() bool { name, _ := whose(t, a, jane); return name == "" })
		_, ok, err := a.Tokens.AuthenticateToken(t.Context(), jane)
		require.False(t, ok)
		require.ErrorContains(t, err, "is reserved")
		write(provider.configuration("changed:", ""))
		eventually(t, "the former prefix", func() bool { name, _ := whose(t, a, jane); return name == "changed:jane" })
	})
	t.Run("a broken file changes nothing", func(t *testing.T) {
		failures := reloadsOf(t, registry, "authentication-config", "failure")
		for _, broken := range []string{"", "{", "kind: Pod", provider.configuration("x:", "unknown: field\n"), provider.configuration("x:", "anonymous: {enabled: true}\n"),
			provider.configuration("x:", "    extra: [{key: authentication.kcp.io/cluster-name, valueExpression: \"'root'\"}]\n")} {
			before := failures
			write(broken)
			eventually(t, "the failure is counted", func() bool {
				failures = reloadsOf(t, registry, "authentication-config", "failure")
				return failures > before
			})
			name, _ := whose(t, a, jane)
			require.Equal(t, "changed:jane", name)
			other := o
			_, err := authn.New(other, authn.Sources{})
			require.ErrorContains(t, err, "--authentication-config", "at the start it is an error")
		}
	})
	t.Run("an issuer that does not answer changes nothing until it does", func(t *testing.T) {
		late := silent(t)
		answer := sync.OnceFunc(func() { close(late.answers) })
		t.Cleanup(answer)
		successes := reloadsOf(t, registry, "authentication-config", "success")
		write(late.configuration("late:", ""))
		joe := late.token(t, map[string]any{"sub": "joe"})
		select {
		case <-late.asked:
		case <-time.After(testTimeout):
			require.Fail(t, "the new issuer is not asked")
		}
		for range 5 {
			name, _ := whose(t, a, jane)
			require.Equal(t, "changed:jane", name)
			name, _ = whose(t, a, joe)
			require.Empty(t, name)
		}
		answer()
		eventually(t, "the new issuer takes over", func() bool { name, _ := whose(t, a, joe); return name == "late:joe" })
		eventually(t, "the success is counted", func() bool { return reloadsOf(t, registry, "authentication-config", "success") > successes })
		name, _ := whose(t, a, jane)
		require.Empty(t, name, "the former issuer is not trusted any more")
	})
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	var broken atomic.Bool
	var elsewhere atomic.Int32
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
			if key, value, says := strings.Cut(name, "="); says {
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
`, server.URL, base64Of(ca)), 0o600))
	o := authn.NewOptions()
	o.ClientCAFile, o.WebhookConfigFile, o.DevTokens = newAuthority(t, "clients").file, file, true
	a := running(t, o, authn.Sources{})

	for range 3 {
		name, groups := whose(t, a, "good")
		require.Equal(t, "hook", name)
		require.Equal(t, []string{"hooked", "system:authenticated"}, groups)
	}
	require.EqualValues(t, 1, calls.Load(), "answers are kept")
	for range 3 {
		name, _ := whose(t, a, "bad")
		require.Empty(t, name)
	}
	require.EqualValues(t, 2, calls.Load(), "those about unknown tokens too")
	name, _ := whose(t, a, "user-1-token")
	require.Equal(t, "user-1", name)
	require.EqualValues(t, 2, calls.Load(), "what is known here is not asked there")
	for _, reserved := range []string{"system:serviceaccount:default:robot", "system:apiserver", "system:kcp:serviceaccount:root:default:robot"} {
		_, ok, err := a.Tokens.AuthenticateToken(t.Context(), "as "+reserved)
		require.False(t, ok)
		require.ErrorContains(t, err, "is reserved")
	}
	for _, reserved := range []string{`authorization.kcp.io/warrant={"groups":["system:masters"]}`, "authentication.kcp.io/cluster-name=root"} {
		_, ok, err := a.Tokens.AuthenticateToken(t.Context(), "as "+reserved)
		require.False(t, ok)
		require.ErrorContains(t, err, "because servers use it for authorization")
	}
	for _, malformed := range []string{` jane`, "jane\t", `Authorization.KCP.io/warrant={"groups":["system:masters"]}`, "example.com/team= blue"} {
		_, ok, err := a.Tokens.AuthenticateToken(t.Context(), "as "+malformed)
		require.False(t, ok)
		require.ErrorContains(t, err, "correct it in the source of the user", "%q: headers carry it otherwise", malformed)
	}
	response, ok, err := a.Tokens.AuthenticateToken(t.Context(), "as authentication.kcp.io/scopes=cluster:root")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []string{"cluster:root"}, response.User.GetExtra()["authentication.kcp.io/scopes"], "what takes away is kept")
	broken.Store(true)
	name, _ = whose(t, a, "another")
	require.Empty(t, name)
	_, _, err = a.Reviewer().AuthenticateToken(t.Context(), "reviewed")
	require.ErrorContains(t, err, "see the log of the server")
	require.NotContains(t, err.Error(), "broken", "whoever reviews a token need not know what the service said")
	require.NotContains(t, err.Error(), server.Listener.Addr().String(), "nor where it is")
	broken.Store(false)
	var log strings.Builder
	verbose := klog.NewContext(t.Context(), funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{Verbosity: 10}))
	forgets := o
	forgets.WebhookCacheTTL = 0 // the cache hides the test's log
	_, _, err = running(t, forgets, authn.Sources{}).Tokens.AuthenticateToken(verbose, "as a-token-for-nobody's-log")
	require.NoError(t, err)
	require.NotContains(t, log.String(), "for-nobody's-log")
	for _, token := range []string{"redirect", "blanks"} {
		_, ok, err := a.Tokens.AuthenticateToken(t.Context(), token)
		require.False(t, ok)
		require.ErrorContains(t, err, "the webhook answered with", token)
	}
	require.Zero(t, elsewhere.Load(), "a redirect was followed")
	name, _ = whose(t, a, "good")
	require.Equal(t, "hook", name)

	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"others"})
	_, ok, _ = a.Reviewer().AuthenticateToken(ctx, "good")
	require.False(t, ok, "the service did not say that the token is for others")

	o.WebhookConfigFile += ".missing"
	_, err = authn.New(o, authn.Sources{})
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
	require.Len(t, o.Validate(), 1, "a client CA is needed")
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
		"no claim":  {},
		"one":       {claims: []string{"here"}, want: true},
		"foreign":   {claims: []string{"there"}},
		"several":   {claims: []string{"here", "there"}},
		"twice":     {claims: []string{"here", "here"}},
		"empty":     {claims: []string{""}},
		"no robot":  {user: "jane", want: true},
		"jane says": {user: "jane", claims: []string{"there"}, want: true},
	} {
		who := &user.DefaultInfo{Name: "system:serviceaccount:ns:robot", Extra: map[string][]string{request.ExtraClusterName: tc.claims}}
		if tc.user != "" {
			who.Name = tc.user
		}
		a := &authn.Authentication{Tokens: authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: who}, true, nil
		})}
		_, ok, err := a.Reviewer().AuthenticateToken(request.WithClusterName(t.Context(), "here"), "token")
		require.Equal(t, tc.want, ok, name)
		require.Equal(t, tc.want, err == nil, name)
		_, ok, _ = a.Reviewer().AuthenticateToken(request.WithWildcard(t.Context()), "token")
		require.Equal(t, tc.user != "", ok, name)
	}
}
