package serviceaccount

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/test/bubble"
)

const issuerURL = "https://issuer.test"

type fakeAccounts struct {
	accounts map[client.Key]*corev1.ServiceAccount
	secrets  map[client.Key]*corev1.Secret
}

func (f *fakeAccounts) ServiceAccount(_ context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error) {
	if found := f.accounts[client.Key{Cluster: cluster, Namespace: namespace, Name: name}]; found != nil {
		return found, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
}

func (f *fakeAccounts) Secret(_ context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error) {
	if found := f.secrets[client.Key{Cluster: cluster, Namespace: namespace, Name: name}]; found != nil {
		return found, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

// world has an issuer and an authenticator with the account robot, in namespace ns of the logical clusters
// one and two.
type world struct {
	dir      string
	issuer   *Issuer
	tokens   *Authenticator
	accounts *fakeAccounts
	robot    *corev1.ServiceAccount
	secret   *corev1.Secret
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	file := writeKey(t, w.dir, "key", elliptic.P256())
	w.robot = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "robot-uid"}}
	w.secret = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "token", UID: "secret-uid"},
		Type:       corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{},
	}
	other := w.robot.DeepCopy()
	other.UID = "other-uid"
	w.accounts = &fakeAccounts{
		accounts: map[client.Key]*corev1.ServiceAccount{
			{Cluster: "one", Namespace: "ns", Name: "robot"}: w.robot,
			{Cluster: "two", Namespace: "ns", Name: "robot"}: other,
		},
		secrets: map[client.Key]*corev1.Secret{{Cluster: "one", Namespace: "ns", Name: "token"}: w.secret},
	}
	var err error
	w.issuer, err = NewIssuer(issuerURL, file)
	require.NoError(t, err)
	w.tokens, err = NewAuthenticator(Config{
		Issuers: []string{issuerURL, "https://former.test"}, KeyFiles: []string{file}, Audiences: authenticator.Audiences{"api"},
		Accounts: w.accounts,
	})
	require.NoError(t, err)
	return w
}

func (w *world) issue(t testing.TB, secret *corev1.Secret, audiences ...string) string {
	t.Helper()
	token, id, err := w.issuer.Issue("one", w.robot, secret, audiences, time.Hour)
	require.NoError(t, err)
	require.NotEmpty(t, id)
	return token
}

// accepted checks that the token is valid for the robot, and returns the response.
func (w *world) accepted(t testing.TB, token string) *authenticator.Response {
	t.Helper()
	response, ok, err := w.tokens.AuthenticateToken(t.Context(), token)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "system:serviceaccount:ns:robot", response.User.GetName())
	require.Equal(t, "robot-uid", response.User.GetUID())
	require.Equal(t, []string{"system:serviceaccounts", "system:serviceaccounts:ns"}, response.User.GetGroups())
	require.Equal(t, []string{"one"}, response.User.GetExtra()[request.ExtraClusterName])
	name, ok := ClaimedCluster(token)
	require.True(t, ok)
	require.Equal(t, logicalcluster.Name("one"), name)
	return response
}

func (w *world) refused(t testing.TB, token, because string) {
	t.Helper()
	_, ok, err := w.tokens.AuthenticateToken(t.Context(), token)
	require.False(t, ok)
	require.ErrorContains(t, err, because)
}

func writeKey(t testing.TB, dir, name string, curve elliptic.Curve) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return writePEM(t, filepath.Join(dir, name+".key"), "EC PRIVATE KEY", der)
}

func writePEM(t testing.TB, file, kind string, der []byte) string {
	t.Helper()
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}

func TestBoundTokens(t *testing.T) {
	w := newWorld(t)
	token := w.issue(t, nil, "api", "elsewhere")
	response := w.accepted(t, token)
	require.Equal(t, authenticator.Audiences{"api"}, response.Audiences)
	require.Len(t, response.User.GetExtra()["authentication.kubernetes.io/credential-id"], 1)
	home, ok := identity.HomeOf("", response.User)
	require.True(t, ok)
	require.Equal(t, logicalcluster.Name("one"), home)

	_, claims := split(t, token)
	require.Equal(t, map[string]any{
		"clusterName": "one", "namespace": "ns", "serviceaccount": map[string]any{"name": "robot", "uid": "robot-uid"},
	}, claims["kubernetes.io"])
	require.Equal(t, "system:serviceaccount:ns:robot", claims["sub"])

	t.Run("audiences", func(t *testing.T) {
		w.refused(t, w.issue(t, nil, "elsewhere"), "audiences")
		w.refused(t, w.issue(t, nil), "audiences")
		ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"elsewhere"})
		response, ok, err := w.tokens.AuthenticateToken(ctx, token)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, authenticator.Audiences{"elsewhere"}, response.Audiences)
	})
	t.Run("time", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			token := w.issue(t, nil, "api")
			time.Sleep(time.Hour) //nolint:forbidigo // in a bubble
			w.accepted(t, token)
			time.Sleep(time.Second) //nolint:forbidigo // in a bubble
			w.refused(t, token, "expired")
			// The clock of the issuer is ahead.
			issued := func(ahead time.Duration) string {
				_, claims := split(t, w.issue(t, nil, "api"))
				claims["iat"] = claims["iat"].(float64) + ahead.Seconds()
				claims["nbf"] = claims["nbf"].(float64) + ahead.Seconds()
				token, err := w.issuer.sign(claims)
				require.NoError(t, err)
				return token
			}
			w.accepted(t, issued(30*time.Second))
			w.refused(t, issued(2*time.Minute), "not valid yet")
		})
	})
	t.Run("account", func(t *testing.T) {
		deleted := metav1.NewTime(time.Now().Add(-2 * time.Minute))
		w.robot.DeletionTimestamp = &deleted
		w.refused(t, token, "deleted")
		recent := metav1.Now()
		w.robot.DeletionTimestamp = &recent
		w.accepted(t, token)
		w.robot.DeletionTimestamp = nil
		w.robot.UID = "recreated"
		w.refused(t, token, "deleted and recreated")
		w.robot.UID = "robot-uid"
		delete(w.accounts.accounts, client.Key{Cluster: "one", Namespace: "ns", Name: "robot"})
		w.refused(t, token, "does not exist")
	})
}

// TestLongTokens checks that long tokens are valid but not cached.
func TestLongTokens(t *testing.T) {
	w := newWorld(t)
	w.accepted(t, w.issue(t, nil, "api", "another"))
	signed := w.tokens.keys.Load().signed
	require.Equal(t, 1, signed.Len())
	w.accepted(t, w.issue(t, nil, "api", strings.Repeat("a", longestRemembered)))
	require.Equal(t, 1, signed.Len())
}

func TestTokensBoundToSecrets(t *testing.T) {
	w := newWorld(t)
	token := w.issue(t, w.secret, "api")
	w.accepted(t, token)
	w.secret.UID = "recreated"
	w.refused(t, token, "deleted and recreated")
	clear(w.accounts.secrets)
	w.refused(t, token, "its secret does not exist")
}

func TestLegacyTokens(t *testing.T) {
	w := newWorld(t)
	token, err := w.issuer.IssueLegacy("one", w.robot, w.secret)
	require.NoError(t, err)
	w.refused(t, token, "does not match its secret")
	w.secret.Data["token"] = []byte(token)
	require.Equal(t, authenticator.Audiences{"api"}, w.accepted(t, token).Audiences)

	w.secret.Type = corev1.SecretTypeOpaque
	w.refused(t, token, "does not match its secret")
	w.secret.Type = corev1.SecretTypeServiceAccountToken
	w.secret.Data["token"] = append([]byte(token), 'x')
	w.refused(t, token, "does not match its secret")
	clear(w.accounts.secrets)
	w.refused(t, token, "does not exist")
}

func TestForgedTokens(t *testing.T) {
	w := newWorld(t)
	good := w.issue(t, nil, "api")
	header, claims := split(t, good)

	stranger, err := NewIssuer(issuerURL, writeKey(t, w.dir, "stranger", elliptic.P256()))
	require.NoError(t, err)
	forged, _, err := stranger.Issue("one", w.robot, nil, []string{"api"}, time.Hour)
	require.NoError(t, err)
	w.refused(t, forged, "signature")

	parts := strings.Split(good, ".")
	for name, change := range map[string]func(claims map[string]any){
		"other cluster": func(c map[string]any) { c["kubernetes.io"].(map[string]any)["clusterName"] = "two" },
		"other account": func(c map[string]any) { c["sub"] = "system:serviceaccount:ns:admin" },
		"longer life":   func(c map[string]any) { c["exp"] = c["exp"].(float64) + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			_, changed := split(t, good)
			change(changed)
			w.refused(t, parts[0]+"."+encode(t, changed)+"."+parts[2], "signature")
		})
	}
	for _, algorithm := range []string{"none", "None", "HS256", "ES384", "RS256", ""} {
		t.Run("algorithm "+algorithm, func(t *testing.T) {
			header["alg"] = algorithm
			for _, signature := range []string{"", parts[2]} {
				_, ok, _ := w.tokens.AuthenticateToken(t.Context(), encode(t, header)+"."+encode(t, claims)+"."+signature)
				require.False(t, ok)
			}
		})
	}
	t.Run("public key as a shared secret", func(t *testing.T) {
		key := w.tokens.keys.Load().keys[0]
		der, err := x509.MarshalPKIXPublicKey(key.public)
		require.NoError(t, err)
		for _, secret := range [][]byte{der, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})} {
			signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: secret, KeyID: key.id}}, nil)
			require.NoError(t, err)
			token, err := jwt.Signed(signer).Claims(claims).CompactSerialize()
			require.NoError(t, err)
			w.refused(t, token, "signature")
		}
	})
	t.Run("inconsistent claims", func(t *testing.T) {
		// Signed with the right key, e.g. by a faulty server.
		for because, change := range map[string]func(c map[string]any){
			"exactly one logical": func(c map[string]any) { c["kubernetes.io/serviceaccount/clusterName"] = "two" },
			"logical cluster":     func(c map[string]any) { delete(c["kubernetes.io"].(map[string]any), "clusterName") },
			"and recreated":       func(c map[string]any) { c["kubernetes.io"].(map[string]any)["clusterName"] = "two" },
			"does not exist":      func(c map[string]any) { c["kubernetes.io"].(map[string]any)["clusterName"] = "three" },
			"subject":             func(c map[string]any) { c["sub"] = "system:serviceaccount:ns:admin" },
			"no expiration time":  func(c map[string]any) { delete(c, "exp") },
			"pod or node":         func(c map[string]any) { c["kubernetes.io"].(map[string]any)["pod"] = map[string]any{"name": "p"} },
			"a service acc":       func(c map[string]any) { c["kubernetes.io"].(map[string]any)["serviceaccount"] = map[string]any{} },
			"target audiences":    func(c map[string]any) { delete(c, "aud") },
			"name its secret": func(c map[string]any) {
				const prefix = "kubernetes.io/serviceaccount/"
				c["iss"], c[prefix+"clusterName"], c[prefix+"namespace"] = LegacyIssuer, "one", "ns"
				c[prefix+"service-account.name"], c[prefix+"service-account.uid"] = "robot", "robot-uid"
			},
		} {
			_, changed := split(t, good)
			change(changed)
			token, err := w.issuer.sign(changed)
			require.NoError(t, err)
			w.refused(t, token, because)
		}
	})
	for _, other := range []string{"", "x", "a.b.c", "user-1-token", encode(t, header) + "." + encode(t, map[string]any{"iss": "https://oidc.test"}) + ".c2ln", strings.Repeat("a", maxTokenSize+1)} {
		_, ok, err := w.tokens.AuthenticateToken(t.Context(), other)
		require.False(t, ok)
		require.NoError(t, err, "tokens of other issuers must not be rejected")
	}
}

func TestKeys(t *testing.T) {
	w := newWorld(t)
	before := w.issue(t, nil, "api")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	private := writePEM(t, filepath.Join(w.dir, "rsa.key"), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	require.NoError(t, err)
	public := writePEM(t, filepath.Join(w.dir, "rsa.pub"), "PUBLIC KEY", der)

	// Rotation: all servers get the new key, then one signs with it, then the old key is removed.
	w.issuer.file = private
	require.NoError(t, w.issuer.Reload())
	after := w.issue(t, nil, "api")
	w.refused(t, after, "signature")
	w.tokens.config.KeyFiles = append(w.tokens.config.KeyFiles, public)
	require.NoError(t, w.tokens.Reload())
	w.accepted(t, before)
	w.accepted(t, after)
	w.tokens.config.KeyFiles = []string{public}
	require.NoError(t, w.tokens.Reload())
	w.refused(t, before, "signature")
	w.accepted(t, after)

	require.NoError(t, os.WriteFile(public, []byte("garbage"), 0o600))
	require.Error(t, w.tokens.Reload())
	w.accepted(t, after)
	require.NoError(t, os.WriteFile(private, []byte("garbage"), 0o600))
	require.Error(t, w.issuer.Reload())
	w.accepted(t, w.issue(t, nil, "api"))

	for _, file := range []string{private, filepath.Join(w.dir, "missing"), writeKey(t, w.dir, "weird", elliptic.P224())} {
		_, err := NewIssuer(issuerURL, file)
		require.Error(t, err)
	}
	for _, curve := range []elliptic.Curve{elliptic.P384(), elliptic.P521()} {
		issuer, err := NewIssuer(issuerURL, writeKey(t, w.dir, curve.Params().Name, curve))
		require.NoError(t, err)
		w.tokens.config.KeyFiles = []string{filepath.Join(w.dir, curve.Params().Name+".key")}
		require.NoError(t, w.tokens.Reload())
		token, _, err := issuer.Issue("one", w.robot, nil, []string{"api"}, time.Hour)
		require.NoError(t, err)
		w.accepted(t, token)
	}
}

func FuzzAuthenticateToken(f *testing.F) {
	w := newWorld(f)
	good, _, err := w.issuer.Issue("one", w.robot, w.secret, []string{"api"}, time.Hour)
	require.NoError(f, err)
	legacy, err := w.issuer.IssueLegacy("one", w.robot, w.secret)
	require.NoError(f, err)
	w.secret.Data["token"] = []byte(legacy)
	for _, seed := range []string{good, legacy, "", "..", "a.b.c", "{}", `{"payload":"e30","signatures":[]}`} {
		f.Add(seed)
	}
	parts := func(token string) []string { return strings.Split(token, ".") }
	f.Fuzz(func(t *testing.T, token string) {
		ClaimedCluster(token)
		response, ok, err := w.tokens.AuthenticateToken(t.Context(), token)
		if !ok {
			return
		}
		require.NoError(t, err)
		require.Equal(t, "one", response.User.GetExtra()[request.ExtraClusterName][0])
		// Only the issuer can sign.
		p := parts(token)
		require.Len(t, p, 3)
		require.Contains(t, []string{parts(good)[1], parts(legacy)[1]}, p[1])
	})
}

// split decodes a token without verifying it.
func split(t testing.TB, token string) (header, claims map[string]any) {
	t.Helper()
	parts := strings.Split(token, ".")
	require.Len(t, parts, 3)
	for i, into := range []*map[string]any{&header, &claims} {
		content, err := base64.RawURLEncoding.DecodeString(parts[i])
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(content, into))
	}
	return header, claims
}

func encode(t testing.TB, value any) string {
	t.Helper()
	content, err := json.Marshal(value)
	require.NoError(t, err)
	return base64.RawURLEncoding.EncodeToString(content)
}
