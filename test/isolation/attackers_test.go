package isolation

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"

	"github.com/shardplane/shardplane/pkg/dev/pki"
)

const (
	frontProxy  = "front-proxy"
	cacheServer = "cache-server"
)

// attacker has a certificate, a token, or both.
type attacker struct {
	name  string
	cert  *tls.Certificate
	token string
	// renewed replaces the token if set.
	renewed atomic.Pointer[string]
	// insider is true for administrators of alpha. The others have no rights.
	insider bool
	// at are the targets to attack, because the attacker has legitimate rights at the others. Empty
	// means all.
	at []string
}

func (p *attacker) attacks(target string) bool {
	return len(p.at) == 0 || slices.Contains(p.at, target)
}

// bearer returns the token to send, if any.
func (p *attacker) bearer() string {
	if renewed := p.renewed.Load(); renewed != nil {
		return *renewed
	}
	return p.token
}

// newAttackers returns the attackers. None of them has rights in bravo or blind.
func (w *world) newAttackers() []*attacker {
	w.bind("mallory", `{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"mallory"}`)
	w.bind("user-1", `{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"user-1"}`)
	shared := filepath.Join(w.Dir, ".kcp")
	client := w.certificateAuthority(shared, "client-ca", time.Now)
	past := func() time.Time { return time.Now().AddDate(-3, 0, 0) }
	foreign := w.certificateAuthority(w.t.TempDir(), "client-ca", time.Now)
	proxyOnly := []string{frontProxy}
	token := w.robotToken(`{"spec":{}}`)
	return append([]*attacker{
		{name: "mallory", cert: w.cert(client, time.Now, "mallory", "crooks"), insider: true},
		{name: "dev token", token: "user-1-token", insider: true},
		{name: "service account", token: token, insider: true},
		{name: "legacy token", token: w.legacyToken(), insider: true},
		{name: "both", cert: w.cert(client, time.Now, "mallory", "crooks"), token: token, insider: true},
		{name: "anonymous"},
		{name: "unrelated user", token: "user-5-token"},
		{name: "certificate of a foreign CA", cert: w.cert(foreign, time.Now, "kcp-admin", "system:masters", "system:kcp:admin")},
		{name: "expired certificate", cert: w.cert(client, past, "kcp-admin", "system:masters", "system:kcp:admin")},
		{name: "serving certificate", cert: w.load(shared, "apiserver")},
		{name: "request header certificate", cert: w.load(shared, "front-proxy-requestheader"), at: []string{frontProxy, cacheServer}},
		{name: "system:masters at the front-proxy", cert: w.load(shared, "shard-admin"), at: proxyOnly},
		{name: "privileged groups at the front-proxy", at: proxyOnly, cert: w.cert(client, time.Now, "climber", "devs",
			"system:kcp:logical-cluster-admin", "system:kcp:initializer:root:universal", "system:kcp:terminator:root:universal")},
		{name: cacheReader, cert: w.cert(client, time.Now, "reader", "shardplane:cache:readers"), at: []string{frontProxy, "root", "shard-1"}},
		{name: shardClient, cert: w.load(shared, "shard-client-shard-1"), at: proxyOnly},
		{name: "privileged groups", cert: w.cert(client, time.Now, "climber", "system:kcp:initializer:root:universal", "system:kcp:terminator:root:universal", "system:authenticated")},
		{name: "privileged groups with blanks", cert: w.cert(client, time.Now, "climber", " system:masters", "system:kcp:admin ")},
		{name: "name of a service account", cert: w.cert(client, time.Now, "system:serviceaccount:default:robot", "system:serviceaccounts", "system:serviceaccounts:default")},
		{name: "global name of a service account", cert: w.cert(client, time.Now, "system:kcp:serviceaccount:"+w.alpha.name+":default:robot")},
	}, w.forgedTokens(token)...)
}

// forgedTokens returns attackers with forged or invalid tokens.
func (w *world) forgedTokens(token string) []*attacker {
	victim := func(claims map[string]any) { kubernetes(claims)["clusterName"] = w.bravo.name }
	ours, other := w.signingKey(), w.newKey()
	deleted := w.deletedAccountToken()
	return []*attacker{
		{name: "edited claims", token: edit(w, token, victim)},
		{name: "edited claims, no signature", token: strings.Join(strings.Split(edit(w, token, victim), ".")[:2], ".") + "."},
		{name: "alg none", token: w.none(token, victim)},
		{name: "foreign key", token: w.sign(other, token, victim)},
		{name: "account of the victim with another UID", token: w.sign(ours, token, victim)},
		{name: "no cluster in the token", token: w.sign(ours, token, func(c map[string]any) { delete(kubernetes(c), "clusterName") })},
		{name: "all clusters in the token", token: w.sign(ours, token, func(c map[string]any) { kubernetes(c)["clusterName"] = "*" })},
		{name: "a path in the token", token: w.sign(ours, token, func(c map[string]any) { kubernetes(c)["clusterName"] = w.bravo.path })},
		{name: "a path traversal in the token", token: w.sign(ours, token, func(c map[string]any) { kubernetes(c)["clusterName"] = "system:x/../" + w.bravo.name })},
		{name: "expired token", token: w.sign(ours, token, func(c map[string]any) { c["exp"] = time.Now().Add(-time.Hour).Unix() })},
		{name: "another issuer", token: w.sign(ours, token, func(c map[string]any) { c["iss"] = "https://elsewhere.test" })},
		{name: "legacy issuer", token: w.sign(ours, token, func(c map[string]any) { c["iss"] = "kubernetes/serviceaccount" })},
		{name: "another audience", token: w.robotToken(`{"spec":{"audiences":["other"]}}`)},
		{name: "deleted account", token: deleted},
		{name: "unknown token", token: "user-6-token"},
	}
}

func kubernetes(claims map[string]any) map[string]any {
	return claims["kubernetes.io"].(map[string]any)
}

// bind makes a subject an administrator of alpha.
func (w *world) bind(name, subject string) {
	w.t.Helper()
	w.must(w.admin, http.MethodPost, w.alpha.path, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		`{"metadata":{"name":"`+name+`"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[`+subject+`]}`, nil)
}

const accounts = "/api/v1/namespaces/default/serviceaccounts"

func (w *world) robotToken(request string) string {
	w.t.Helper()
	var response struct{ Status struct{ Token string } }
	w.must(w.admin, http.MethodPost, w.alpha.path, accounts+"/robot/token", request, &response)
	require.NotEmpty(w.t, response.Status.Token)
	return response.Status.Token
}

func (w *world) legacyToken() string {
	w.t.Helper()
	const secrets = "/api/v1/namespaces/default/secrets"
	w.must(w.admin, http.MethodPost, w.alpha.path, secrets,
		`{"metadata":{"name":"robot-token","annotations":{"kubernetes.io/service-account.name":"robot"}},"type":"kubernetes.io/service-account-token"}`, nil)
	var secret struct{ Data map[string][]byte }
	require.Eventually(w.t, func() bool {
		w.must(w.admin, http.MethodGet, w.alpha.path, secrets+"/robot-token", "", &secret)
		return len(secret.Data["token"]) > 0
	}, testTimeout, 20*time.Millisecond, "the Secret has no token")
	return string(secret.Data["token"])
}

func (w *world) deletedAccountToken() string {
	w.t.Helper()
	w.must(w.admin, http.MethodPost, w.alpha.path, accounts, `{"metadata":{"name":"deleted"}}`, nil)
	w.bind("deleted", `{"kind":"ServiceAccount","namespace":"default","name":"deleted"}`)
	var response struct{ Status struct{ Token string } }
	w.must(w.admin, http.MethodPost, w.alpha.path, accounts+"/deleted/token", `{"spec":{}}`, &response)
	w.must(w.admin, http.MethodDelete, w.alpha.path, accounts+"/deleted", "", nil)
	return response.Status.Token
}

func (w *world) certificateAuthority(dir, name string, now func() time.Time) *pki.Pair {
	w.t.Helper()
	ca, err := pki.NewStore(dir, now).Authority(name)
	require.NoError(w.t, err)
	return ca
}

func (w *world) cert(ca *pki.Pair, now func() time.Time, user string, groups ...string) *tls.Certificate {
	w.t.Helper()
	pair, err := pki.NewStore(w.t.TempDir(), now).Certificate("person", ca, pki.Client(user, groups...))
	require.NoError(w.t, err)
	return w.pair(pair.CertPEM, pair.KeyPEM)
}

func (w *world) load(dir, name string) *tls.Certificate {
	w.t.Helper()
	cert, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	require.NoError(w.t, err)
	key, err := os.ReadFile(filepath.Join(dir, name+".key"))
	require.NoError(w.t, err)
	return w.pair(cert, key)
}

func (w *world) pair(cert, key []byte) *tls.Certificate {
	w.t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(w.t, err)
	pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	require.NoError(w.t, err)
	return &pair
}

// signingKey returns the key that signs tokens of service accounts. Even tokens signed with it are
// verified against existing objects.
func (w *world) signingKey() *ecdsa.PrivateKey {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.Dir, ".kcp", "service-account.key"))
	require.NoError(w.t, err)
	block, _ := pem.Decode(data)
	require.NotNil(w.t, block)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	require.NoError(w.t, err)
	return key
}

func (w *world) newKey() *ecdsa.PrivateKey {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(w.t, err)
	return key
}

// claims returns the modified claims of a token.
func (w *world) claims(token string, change func(map[string]any)) []byte {
	w.t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	require.NoError(w.t, err)
	var claims map[string]any
	require.NoError(w.t, json.Unmarshal(payload, &claims))
	edited := maps.Clone(claims)
	change(edited)
	out, err := json.Marshal(edited)
	require.NoError(w.t, err)
	return out
}

// edit modifies the claims of a token without updating its signature.
func edit(w *world, token string, change func(map[string]any)) string {
	parts := strings.Split(token, ".")
	return parts[0] + "." + base64.RawURLEncoding.EncodeToString(w.claims(token, change)) + "." + parts[2]
}

// none returns a token with the algorithm "none".
func (w *world) none(token string, change func(map[string]any)) string {
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString(w.claims(token, change)) + "."
}

// sign signs the modified claims of a token.
func (w *world) sign(key *ecdsa.PrivateKey, token string, change func(map[string]any)) string {
	w.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	require.NoError(w.t, err)
	signed, err := signer.Sign(w.claims(token, change))
	require.NoError(w.t, err)
	text, err := signed.CompactSerialize()
	require.NoError(w.t, err)
	return text
}

// setToken replaces the token of an attacker.
func (w *world) setToken(name, token string) {
	for _, p := range w.attackers {
		if p.name == name || name == "service account" && p.name == "both" {
			p.renewed.Store(&token)
		}
	}
}
