package issuers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/webhooktransport"
	"github.com/shardplane/shardplane/test/bubble"
)

func newIssuers(t *testing.T) *Issuers {
	t.Helper()
	documents, err := webhooktransport.NewDocuments("--cidrs", []string{"127.0.0.0/8"})
	require.NoError(t, err)
	return NewIssuers(Config{Documents: documents})
}

func of(cluster string, entries ...tenancyv1alpha1.JWTAuthenticator) []*Configuration {
	return []*Configuration{{
		ObjectMeta: metav1.ObjectMeta{Name: "issuers", Annotations: map[string]string{logicalcluster.AnnotationKey: cluster}},
		Spec:       tenancyv1alpha1.WorkspaceAuthenticationConfigurationSpec{JWT: entries},
	}}
}

func TestSlotLimits(t *testing.T) {
	p := newSlots(3, 2)
	require.NotNil(t, p.take("a"))
	require.NotNil(t, p.take("a"))
	require.Nil(t, p.take("a"), "a logical cluster must not exceed its number of slots")
	require.NotNil(t, p.take("b"))
	require.Nil(t, p.take("c"), "the total number of slots must not be exceeded")
	p.give("a")
	require.NotNil(t, p.take("c"))
	p.give("a")
	p.give("b")
	p.give("c")
	require.Empty(t, p.homes)
	require.Zero(t, p.taken)
}

func TestUnverified(t *testing.T) {
	token := func(payload string) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte("key")}, nil)
		require.NoError(t, err)
		signed, err := signer.Sign([]byte(payload))
		require.NoError(t, err)
		text, err := signed.CompactSerialize()
		require.NoError(t, err)
		return text
	}
	for payload, want := range map[string]claims{
		`{"iss":"https://a"}`:                              {issuer: "https://a"},
		`{"iss":"accounts.google.com"}`:                    {issuer: "https://accounts.google.com"},
		`{"iss":"https://a","_claim_names":{}}`:            {issuer: "https://a", distributed: true},
		`{"iss":"https://a","_claim_sources":{"x":"y"}}`:   {issuer: "https://a", distributed: true},
		`{"iss":"https://a","ISS":"https://b","Iss":"c"}`:  {issuer: "https://a"},
		`{"iss":"https://a","_CLAIM_NAMES":{},"other":{}}`: {issuer: "https://a"},
	} {
		got, err := unverified(token(payload))
		require.NoError(t, err, payload)
		require.Equal(t, want, got, payload)
	}
	for _, no := range []string{"", "x", "a.b.c", "a.b", token("[]"), token("{}"), token(`{"iss":7}`), token(`{"iss":"` + strings.Repeat("x", maxTokenBytes) + `"}`)} {
		require.False(t, IsToken(no), "%.40s", no)
	}
}

// TestKeys checks that keys are rejected if verifying signatures with them is too expensive.
func TestKeys(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	encoded := func(keys ...any) []byte {
		data, err := json.Marshal(map[string]any{"keys": keys})
		require.NoError(t, err)
		return data
	}
	good := jose.JSONWebKey{Key: private.Public(), KeyID: "good"}
	keys, err := parseKeys(encoded(map[string]string{"kty": "unknown"}, jose.JSONWebKey{Key: private.Public(), Use: "enc"}, jose.JSONWebKey{Key: []byte("secret")}, jose.JSONWebKey{Key: private.Public(), KeyID: strings.Repeat("x", 257)}, good))
	require.NoError(t, err)
	require.Len(t, keys, 1)
	require.Equal(t, "good", keys[0].KeyID)
	for want, data := range map[string][]byte{
		"JSON Web Key Set": []byte("{"),
		"none of them can": encoded(),
		"51 keys":          encoded(make([]any, 51)...),
		"has 8193 bits, ":  encoded(jose.JSONWebKey{Key: &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 8192), E: 3}}),
	} {
		_, err := parseKeys(data)
		require.ErrorContains(t, err, want)
	}
}

// TestSweep checks which providers are dropped, and that their keys are dropped with the last provider.
func TestSweep(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		i := newIssuers(t)
		defer i.fetcher.end()
		get := func(home string, n int) *provider {
			username := tenancyv1alpha1.PrefixedClaimOrExpression{Prefix: new(fmt.Sprint(n))}
			entry := tenancyv1alpha1.JWTAuthenticator{Issuer: tenancyv1alpha1.Issuer{URL: "https://" + home}, ClaimMappings: tenancyv1alpha1.ClaimMappings{Username: username}}
			time.Sleep(time.Millisecond) //nolint:forbidigo // in a bubble
			return i.provider(digestOf(entry), logicalcluster.Name(home), &entry)
		}
		quiet := get("quiet", 0)
		first := get("loud", 0)
		for n := range 2 * maxProvidersEach {
			keys := get("loud", n).keys
			require.Same(t, i.keys[digestOf(keys.issuer)], keys, "keys are not shared")
			require.Same(t, first, get("loud", 0), "a recently used provider was dropped")
		}
		require.Equal(t, 1+maxProvidersEach, len(i.providers)) //nolint:testifylint // the map is long where it fails
		require.Same(t, quiet, get("quiet", 0), "the provider of another logical cluster was dropped")
		for n := range 2 * maxProviders {
			get(fmt.Sprint("other-", n%(maxProviders/10)), n)
			require.LessOrEqual(t, len(i.providers), maxProviders)
		}
		require.Same(t, quiet, get("quiet", 0), "a provider of a logical cluster with few providers was dropped")
		require.LessOrEqual(t, len(i.keys), 2+maxProviders/10)
		time.Sleep(idleTimeout - time.Second) //nolint:forbidigo // in a bubble
		require.Same(t, quiet, get("quiet", 0))
		time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
		get("new", 0)
		require.Equal(t, 2, len(i.providers)) //nolint:testifylint // likewise
		require.Equal(t, 2, len(i.keys))      //nolint:testifylint // likewise
		require.Same(t, quiet, get("quiet", 0))
	})
}

// TestPauses checks the backoff of fetches from a failing issuer. Tokens in between, and tokens with unknown
// keys, cause no fetches.
func TestPauses(t *testing.T) {
	var fetches atomic.Int64
	var fails atomic.Bool
	fails.Store(true)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	var server *httptest.Server
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}})
			return
		}
		fetches.Add(1)
		if fails.Load() {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": server.URL, "jwks_uri": server.URL + "/keys"})
	}))
	t.Cleanup(server.Close)
	token := func(id string) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
		require.NoError(t, err)
		text, err := jwt.Signed(signer).Claims(map[string]any{"iss": server.URL, "aud": "x", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix()}).CompactSerialize()
		require.NoError(t, err)
		return text
	}
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	username := tenancyv1alpha1.PrefixedClaimOrExpression{Claim: "sub", Prefix: new("")}
	configuration := of("home", tenancyv1alpha1.JWTAuthenticator{
		Issuer:        tenancyv1alpha1.Issuer{URL: server.URL, Audiences: []string{"x"}, CertificateAuthority: ca},
		ClaimMappings: tenancyv1alpha1.ClaimMappings{Username: username},
	})
	i := newIssuers(t)
	t.Cleanup(i.fetcher.end)
	began := time.Now()
	// atMost is the maximum number of fetches since.
	atMost := func(before int64) int64 { return before + 1 + int64(time.Since(began)/minPause) }
	for range 100 {
		_, ok, err := i.AuthenticateToken(t.Context(), configuration, token("1"))
		require.False(t, ok)
		require.ErrorContains(t, err, "status 503")
	}
	require.LessOrEqual(t, fetches.Load(), atMost(0))
	k := i.provider(digestOf(configuration[0].Spec.JWT[0]), "home", &configuration[0].Spec.JWT[0]).keys
	require.LessOrEqual(t, k.next, time.Now().Add(8*minPause))
	for range 20 {
		k.fetched = make(chan struct{})
		k.finish(nil, errStopped)
	}
	require.Greater(t, time.Until(k.next), maxPause-time.Second)
	require.LessOrEqual(t, time.Until(k.next), maxPause)

	k.next = time.Time{}
	fails.Store(false)
	response, ok, err := i.AuthenticateToken(t.Context(), configuration, token("1"))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "jane", response.User.GetName())
	before := fetches.Load()
	began = time.Now()
	for n := range 100 {
		_, _, err := i.AuthenticateToken(t.Context(), configuration, token(fmt.Sprint("unknown-", n)))
		require.ErrorIs(t, err, errUnknownKey)
	}
	require.LessOrEqual(t, fetches.Load(), atMost(before))
	server.Close()
	_, ok, _ = i.AuthenticateToken(t.Context(), configuration, token("1"))
	require.True(t, ok, "cached keys must be used if the issuer is unreachable")
}

// TestLargePatterns checks that large regular expressions of a configuration are not compiled, because they
// are matched with tokens of unauthenticated clients.
func TestLargePatterns(t *testing.T) {
	from := newIssuers(t)
	build := func(expression string) error {
		entry := tenancyv1alpha1.JWTAuthenticator{
			Issuer:        tenancyv1alpha1.Issuer{URL: "https://issuer.example", Audiences: []string{"a"}},
			ClaimMappings: tenancyv1alpha1.ClaimMappings{Username: tenancyv1alpha1.PrefixedClaimOrExpression{Expression: expression}},
		}
		p := &provider{entry: &entry, keys: &keySet{from: from.fetcher}}
		p.build()
		return p.err
	}
	require.NoError(t, build("claims.sub"))
	require.ErrorContains(t, build("claims.sub.find('"+strings.Repeat("a{0,1000}", 100)+"')"), "at most 2500 allowed")
}
