package neighbours

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/client-go/rest"
)

// tokens: the attacker has an issuer whose tokens take long to map to users, and sends many of them. The front-proxy maps
// them before it has authenticated anybody, and answers the requests of others meanwhile.
func tokens(t *testing.T, w *world) {
	const sent = maxAnonymous - 10
	issuer, token := newIssuer(t)
	ca, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})))
	require.NoError(t, err)
	// Within the limits: some 1,800 instructions for each of 10,000 characters, which take more than 0.1 s.
	w.attacker.create(t, authenticationPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceAuthenticationConfiguration","metadata":{"name":%q},"spec":{"jwt":[{"issuer":{"url":%q,"audiences":["x"],"audienceMatchPolicy":"MatchAny","certificateAuthority":%s},
		"claimMappings":{"username":{"expression":"claims.sub.matches('(a?){600}c$') ? 'x' : 'y'"},"groups":{"expression":"[]"}}}]}}`, w.mark, issuer.URL, ca))
	w.attacker.create(t, "/apis/tenancy.kcp.io/v1alpha1/workspacetypes", fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%[1]q},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"authenticationConfigurations":[{"name":%[1]q}]}}`, w.mark))
	w.attacker.create(t, workspacesPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%[1]q},"spec":{"type":{"name":%[1]q,"path":"root:attacker"}}}`, w.mark))
	require.Eventually(t, func() bool {
		return strings.Contains(string(w.attacker.must(t, http.MethodGet, workspacesPath+"/"+w.mark, "")), `"phase":"Ready"`)
	}, testTimeout, tick)

	own := rest.CopyConfig(w.attacker.config)
	own.Host += ":" + w.mark
	reviewer := newTenant(t, own)
	require.Eventually(t, func() bool {
		code, body, err := reviewer.call(t.Context(), http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", fmt.Sprintf(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":%q}}`, token("aaaa")))
		return err == nil && code == http.StatusCreated && strings.Contains(string(body), `"authenticated":true`)
	}, testTimeout, tick, "the issuer is known")
	config := rest.AnonymousClientConfig(own)
	config.BearerToken = token(strings.Repeat("a", 10_000))
	stranger := newTenant(t, config)
	var pending sync.WaitGroup
	codes := make(chan int, sent)
	for range sent {
		pending.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			code, _, err := stranger.call(ctx, http.MethodGet, configMaps, "")
			if err != nil {
				t.Errorf("a token is not answered: %v", err)
			}
			codes <- code
		})
	}
	for len(codes) < sent/2 {
		w.quiet.must(t, http.MethodGet, configMaps, "")
	}
	pending.Wait()
	close(codes)
	for code := range codes {
		require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}, code)
	}
	w.quiet.must(t, http.MethodGet, configMaps, "")
}

// newIssuer starts an issuer of tokens.
func newIssuer(t *testing.T) (issuer *httptest.Server, token func(subject string) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	issuer = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = map[string]string{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys"}
		if r.URL.Path == "/keys" {
			answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(issuer.Close)
	return issuer, func(subject string) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil)
		require.NoError(t, err)
		signed, err := jwt.Signed(signer).Claims(map[string]any{"iss": issuer.URL, "aud": "x", "sub": subject, "exp": time.Now().Add(time.Hour).Unix()}).CompactSerialize()
		require.NoError(t, err)
		return signed
	}
}
