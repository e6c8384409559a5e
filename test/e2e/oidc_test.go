package e2e

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestOIDC logs people in at dex and sends what it says of them to front-proxy and
// shard: both know who is meant, whom an issuer may not name, and what is no token
// of it.
func TestOIDC(t *testing.T) {
	dex := newIssuer(t)
	file := dex.configuration()
	args := []string{"--authentication-config=" + file}
	c := harness.Start(t, harness.Options{ExtraArgs: map[string][]string{"front-proxy": args, "shard": args}}) // the issuer is down
	dex.start()
	k := newKubectl(t, c)
	k.run(t, "root", workspaceYAML("oidc", "root"), "apply", "-f", "-")
	k.run(t, "root", "", "wait", "--for=jsonpath={.status.phase}=Ready", "workspace/oidc", "--timeout=60s")
	k.run(t, "root:oidc", "", "create", "clusterrolebinding", "access", "--clusterrole=system:kcp:workspace:access", "--group=system:authenticated")
	k.run(t, "root:oidc", "", "create", "clusterrolebinding", "devs", "--clusterrole=cluster-admin", "--group=devs")

	s := oidcSuite{t: t, dex: dex, servers: map[string]*rest.Config{"front-proxy": c.Proxy(), "shard": c.Shard(0)}}
	jane := identity{Username: "jane", Groups: []string{"devs"}}
	first := dex.token(jane, audience, "/token")
	for name := range s.servers {
		require.Eventually(t, func() bool { _, err := s.whoami(name, first); return err == nil }, testTimeout, 50*time.Millisecond,
			"%s knows the issuer, which was down when it started", name)
	}
	s.testNames()
	s.testTooManyGroups(first)
	s.testForgeries(dex.token(jane, audience, "/token"))

	t.Run("kubectl", func(t *testing.T) {
		as := func(token string, args ...string) (string, error) {
			return k.try(t, "root:oidc", "", append([]string{"--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--token=" + token}, args...)...)
		}
		output, err := as(first, "auth", "whoami")
		require.NoError(t, err, output)
		require.Regexp(t, `Username +jane\nGroups +\[devs system:authenticated\]\nExtra: example.com/subject`, output)
		output, err = as(first, "create", "configmap", "of-jane")
		require.NoError(t, err, output)
		output, err = as(dex.token(jane, audience, "/expired/token"), "get", "configmaps")
		require.Error(t, err)
		require.Contains(t, output, "You must be logged in to the server")
	})
	t.Run("the issuer goes down and comes back with other keys", func(t *testing.T) {
		unseen, late := dex.token(jane, audience, "/token"), dex.token(jane, audience, "/token")
		dex.stop()
		for name := range s.servers {
			who, err := s.whoami(name, unseen)
			require.NoError(t, err, "its keys are known")
			require.Equal(t, "jane", who.Username)
		}
		dex.start()
		rotated := dex.token(jane, audience, "/token")
		for name := range s.servers {
			_, err := s.whoami(name, rotated)
			require.True(t, apierrors.IsUnauthorized(err), "dex has said for how long its keys are good: %v", err)
		}
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, append(content, "# read again\n"...), 0o600))
		for name := range s.servers {
			require.Eventually(t, func() bool { _, err := s.whoami(name, rotated); return err == nil }, testTimeout, 10*time.Millisecond,
				"%s asks for the new keys", name)
			_, err = s.whoami(name, late)
			require.True(t, apierrors.IsUnauthorized(err), "the former keys are trusted no more: %v", err)
		}
	})
}

// oidcSuite asks servers who somebody is.
type oidcSuite struct {
	t       *testing.T
	dex     *issuer
	servers map[string]*rest.Config
}

func (s *oidcSuite) whoami(server, token string) (authenticationv1.UserInfo, error) {
	s.t.Helper()
	config := rest.AnonymousClientConfig(harness.In(s.servers[server], "root:oidc"))
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	require.NoError(s.t, err)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(s.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// testNames holds whom the issuer can name.
func (s *oidcSuite) testNames() {
	many := make([]string, 2000)
	for n := range many {
		many[n] = fmt.Sprintf("group-%04d-of-a-long-list", n)
	}
	for what, tc := range map[string]struct {
		identity

		want []string // groups; nil: 401
	}{
		"groups":                         {identity{"jane", []string{"devs", "ops"}}, []string{"devs", "ops"}},
		"the system's groups":            {identity{"jane", []string{"system:masters", "devs", "system:kcp:logical-cluster-admin", "system:kcp:external-logical-cluster-admin", "system:kcp:initializer:root:x", "system:kcp:terminator:root:x", "apis.kcp.io:binding:root:x"}}, []string{"devs"}},
		"groups of service accounts":     {identity{"jane", []string{"system:serviceaccounts", "system:serviceaccounts:default", "devs"}}, []string{"devs"}},
		"groups of logical clusters":     {identity{"jane", []string{"system:cluster:root", "devs"}}, []string{"devs"}},
		"administrators":                 {identity{"jane", []string{"system:kcp:admin"}}, []string{"system:kcp:admin"}},
		"many groups":                    {identity{"jane", many}, many},
		"a user of the system":           {identity{"system:apiserver", nil}, nil},
		"a service account":              {identity{"system:serviceaccount:default:default", nil}, nil},
		"a global service account":       {identity{"system:kcp:serviceaccount:root:default:default", nil}, nil},
		"a blank before the name":        {identity{" jane", nil}, nil},
		"a blank before a reserved name": {identity{" system:apiserver", nil}, nil},
		"a control character":            {identity{"jane\n", nil}, nil},
		"a header in a name":             {identity{"jane\r\nX-Remote-Group: system:masters", nil}, nil},
		"a blank before a group":         {identity{"jane", []string{" system:masters"}}, nil},
		"a control character in a group": {identity{"jane", []string{"devs\x00system:masters"}}, nil},
		"an empty name":                  {identity{"", nil}, nil},
	} {
		token := s.dex.token(tc.identity, audience, "/token")
		for name := range s.servers {
			who, err := s.whoami(name, token)
			if tc.want == nil {
				require.True(s.t, apierrors.IsUnauthorized(err), "%s, %s: %v", what, name, err)
				continue
			}
			require.NoError(s.t, err, "%s, %s", what, name)
			require.Equal(s.t, "jane", who.Username)
			require.Equal(s.t, append(slices.Clip(tc.want), "system:authenticated"), who.Groups, "%s, %s", what, name)
			require.Len(s.t, who.Extra["example.com/subject"], 1)
		}
	}
}

// testTooManyGroups holds what a user is told whose groups are more than a shard
// takes in headers, and that it hinders nobody.
func (s *oidcSuite) testTooManyGroups(others string) {
	all := make([]string, 25_000)
	for n := range all {
		all[n] = fmt.Sprintf("group-%05d", n)
	}
	token := s.dex.token(identity{"jane", all}, audience, "/token")
	_, err := s.whoami("front-proxy", token)
	require.ErrorContains(s.t, err, "have the issuer of the user name fewer groups")
	_, err = s.whoami("front-proxy", others)
	require.NoError(s.t, err)
}

// testForgeries holds that what resembles a good token is none.
func (s *oidcSuite) testForgeries(good string) {
	jane := identity{Username: "jane", Groups: []string{"devs"}}
	parts := strings.Split(good, ".")
	var header map[string]any
	decoded, err := base64.RawURLEncoding.DecodeString(parts[0])
	require.NoError(s.t, err)
	require.NoError(s.t, json.Unmarshal(decoded, &header))
	with := func(alg string, claims string, sign func(input string) []byte) string {
		changed := map[string]any{"alg": alg, "kid": header["kid"]}
		content, err := json.Marshal(changed)
		require.NoError(s.t, err)
		input := base64.RawURLEncoding.EncodeToString(content) + "." + claims
		return input + "." + base64.RawURLEncoding.EncodeToString(sign(input))
	}
	mine, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(s.t, err)
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(s.t, err)
	tampered := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), "jane", "joan", 1)))
	require.NotEqual(s.t, parts[1], tampered)

	for what, token := range map[string]string{
		"for another audience":    s.dex.token(jane, "others", "/token"),
		"expired":                 s.dex.token(jane, audience, "/expired/token"),
		"of another issuer":       s.dex.token(jane, audience, "/other/token"),
		"without a signature":     parts[0] + "." + parts[1] + ".",
		"with algorithm none":     with("none", parts[1], func(string) []byte { return nil }),
		"signed with another key": with("RS256", parts[1], signedBy(s.t, mine)),
		"with other claims":       parts[0] + "." + tampered + "." + parts[2],
		"signed with the public key as a secret": with("HS256", parts[1], func(input string) []byte {
			mac := hmac.New(sha256.New, s.publicKey(header["kid"]))
			mac.Write([]byte(input))
			return mac.Sum(nil)
		}),
		"long": strings.Repeat("a", 200<<10) + "." + parts[1] + "." + parts[2],
	} {
		for name := range s.servers {
			_, err := s.whoami(name, token)
			require.True(s.t, apierrors.IsUnauthorized(err), "%s, %s: %v", what, name, err)
			require.NotContains(s.t, err.Error(), s.dex.url, "%s, %s: nobody is told where the issuer is", what, name)
		}
	}
	for name := range s.servers {
		_, err := s.whoami(name, good)
		require.NoError(s.t, err, "the original is good")
	}
}

// publicKey returns the issuer's key in PEM, with which a server would check the
// signature.
func (s *oidcSuite) publicKey(kid any) []byte {
	s.t.Helper()
	response, err := s.dex.http.Get(s.dex.url + "/keys") //nolint:noctx // of this test's server
	require.NoError(s.t, err)
	defer func() { _ = response.Body.Close() }()
	var set jose.JSONWebKeySet
	require.NoError(s.t, json.NewDecoder(response.Body).Decode(&set))
	keys := set.Key(kid.(string))
	require.Len(s.t, keys, 1)
	der, err := x509.MarshalPKIXPublicKey(keys[0].Key)
	require.NoError(s.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func signedBy(t *testing.T, key *rsa.PrivateKey) func(string) []byte {
	t.Helper()
	return func(input string) []byte {
		digest := sha256.Sum256([]byte(input))
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
		require.NoError(t, err)
		return signature
	}
}
