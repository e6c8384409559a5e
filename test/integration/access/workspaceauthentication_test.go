package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// authenticatedType is a WorkspaceType with an authentication configuration.
const authenticatedType = `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%q},"spec":{"authenticationConfigurations":[{"name":%q}]}}`

// issuer is an OIDC provider of a tenant, over TLS.
type issuer struct {
	*httptest.Server
	t *testing.T

	key *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	i := &issuer{t: t, key: key}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var response any = map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"}
		if r.URL.Path == "/keys" {
			response = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}}
		}
		_ = json.NewEncoder(w).Encode(response)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) token(claims map[string]any) string {
	i.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "1"}}, nil)
	require.NoError(i.t, err)
	all := map[string]any{"iss": i.URL, "aud": "tenant", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	token, err := jwt.Signed(signer).Claims(all).CompactSerialize()
	require.NoError(i.t, err)
	return token
}

func (i *issuer) entry(prefix string) tenancyv1alpha1.JWTAuthenticator {
	return tenancyv1alpha1.JWTAuthenticator{
		Issuer: tenancyv1alpha1.Issuer{
			URL: i.URL, Audiences: []string{"tenant"},
			CertificateAuthority: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})),
		},
		ClaimMappings: tenancyv1alpha1.ClaimMappings{
			Username: tenancyv1alpha1.PrefixedClaimOrExpression{Claim: "sub", Prefix: &prefix},
			Groups:   tenancyv1alpha1.PrefixedClaimOrExpression{Claim: "groups", Prefix: &prefix},
		},
	}
}

func configure(e *kit.Env, cluster, name string, entries ...tenancyv1alpha1.JWTAuthenticator) {
	e.T.Helper()
	harness.Create(e.T, kinds.WorkspaceAuthenticationConfigurations.In(e.ProxyClient.Cluster(kit.Path(cluster))), &tenancyv1alpha1.WorkspaceAuthenticationConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: tenancyv1alpha1.WorkspaceAuthenticationConfigurationSpec{JWT: entries},
	})
}

// ofType creates a workspace of a type on a shard, and returns its logical cluster.
func ofType(e *kit.Env, parent, name string, shard int, typ string) string {
	e.T.Helper()
	made := kit.WorkspaceClient{Env: e, Config: e.Proxy(), ClusterName: parent}.CreateWorkspaceOfType(name, typ, shard)
	made.UntilReady()
	return made.ClusterName
}

// review returns the TokenReview of a token in a logical cluster.
func review(t *testing.T, config *rest.Config, cluster, token string) authenticationv1.TokenReviewStatus {
	t.Helper()
	got := harness.Create(t, harness.Clientset(t, config, cluster).AuthenticationV1().TokenReviews(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}})
	return got.Status
}

// untilAuthenticated waits until a server accepts a token. Most accept it immediately, because requests wait for the configuration
// of a new logical cluster, but on a busy machine not long enough.
func untilAuthenticated(e *kit.Env, config *rest.Config, cluster, token string) (status authenticationv1.TokenReviewStatus) {
	e.T.Helper()
	e.Eventually("the token is accepted", func() bool {
		status = review(e.T, config, cluster, token)
		return status.Authenticated
	})
	return status
}

// TestWorkspaceAuthentication checks that workspaces of a type, on any shard, accept tokens of the issuers that the type specifies,
// and that other workspaces do not.
func TestWorkspaceAuthentication(t *testing.T) {
	t.Parallel()
	e := kit.SharedUnchanged(t)
	provider := newIssuer(t)
	home := ofType(e, "root", "issuers", 0, "root:universal")
	admin := kit.WorkspaceClient{Env: e, Config: e.Proxy(), ClusterName: home}
	configure(e, home, "own", provider.entry("oidc:"))
	admin.Create(kit.TenancyPath+"workspacetypes", authenticatedType, "team", "own")
	here := ofType(e, "root:issuers", "here", 0, "root:issuers:team")
	jane := provider.token(map[string]any{"groups": []string{"devs", "system:masters"}})
	// Neither shard has used the issuer before.
	for cluster, shard := range map[string]*rest.Config{here: e.Shard(0), ofType(e, "root:issuers", "there", 1, home+":team"): e.Shard(1)} {
		status := untilAuthenticated(e, shard, cluster, jane)
		require.Equal(t, []string{"https://kcp.default.svc"}, status.Audiences)
		require.Equal(t, "oidc:jane", status.User.Username)
		require.Equal(t, []string{"oidc:devs", "oidc:system:masters", "system:authenticated"}, status.User.Groups)
		require.Equal(t, authenticationv1.ExtraValue{"cluster:" + cluster}, status.User.Extra["authentication.kcp.io/scopes"])
		require.Equal(t, authenticationv1.ExtraValue{cluster}, status.User.Extra["authentication.kcp.io/cluster-name"])

		bindClusterAdmin(t, harness.Clientset(t, e.Proxy(), cluster), "jane", rbacv1.Subject{Kind: "User", Name: "oidc:jane"})
		for _, server := range []*rest.Config{e.Proxy(), shard} {
			config := kit.WithToken(server, jane)
			e.Eventually("the binding applies", func() bool { return codeOf(t, config, "/clusters/"+cluster+kit.ConfigMapsPath) == http.StatusOK })
			require.Equal(t, status.User, kit.WhoAmI(t, config, cluster))
			for _, other := range []string{"root", "root:issuers", home, "root:nowhere", "*"} {
				require.Equal(t, http.StatusUnauthorized, codeOf(t, config, "/clusters/"+other+kit.ConfigMapsPath), other)
			}
			require.Equal(t, http.StatusUnauthorized, codeOf(t, config, "/api"))
			require.Equal(t, http.StatusUnauthorized, codeOf(t, config, "/metrics"))
		}
	}
	config := kit.WithToken(e.Proxy(), jane)
	require.Equal(t, http.StatusOK, codeOf(t, config, "/clusters/root:issuers:here"+kit.ConfigMapsPath), "by path")
	require.Equal(t, http.StatusOK, codeOf(t, config, "/clusters/root:issuers:there"+kit.ConfigMapsPath))
	require.False(t, review(t, e.Shard(0), home, jane).Authenticated, "the workspace of the type itself must not accept the issuer")

	t.Run("issuers of extended types are ignored", func(t *testing.T) {
		admin.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"extends"},"spec":{"extend":{"with":[{"name":"team","path":"root:issuers"}]}}}`)
		require.False(t, review(t, e.Shard(0), ofType(e, "root:issuers", "extends", 0, "root:issuers:extends"), jane).Authenticated)
	})
	t.Run("system users", func(t *testing.T) {
		configure(e, home, "unprefixed", provider.entry(""))
		admin.Create(kit.TenancyPath+"workspacetypes", authenticatedType, "unprefixed", "unprefixed")
		cluster := ofType(e, "root:issuers", "unprefixed", 1, "root:issuers:unprefixed")
		status := untilAuthenticated(e, e.Shard(1), cluster, jane)
		require.Equal(t, []string{"devs", "system:authenticated"}, status.User.Groups, "%+v", status)
		robot := provider.token(map[string]any{"sub": "system:serviceaccount:default:default"})
		require.Contains(t, review(t, e.Shard(1), cluster, robot).Error, "is reserved")
		for _, server := range []*rest.Config{e.Proxy(), e.Shard(1)} {
			e.Eventually("the user is authenticated but not authorized", func() bool {
				return codeOf(t, kit.WithToken(server, jane), "/clusters/"+cluster+kit.ConfigMapsPath) == http.StatusForbidden
			})
			require.Equal(t, http.StatusUnauthorized, codeOf(t, kit.WithToken(server, robot), "/clusters/"+cluster+kit.ConfigMapsPath))
		}
	})
}

// TestWorkspaceAuthenticationSchema checks that the API rejects the same objects as kcp.
func TestWorkspaceAuthenticationSchema(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	const jwts = `{"jwt":[{"issuer":{"url":"https://issuer.test"},%s"claimMappings":{"username":%s,"groups":{"expression":"claims."}%s}}]}`
	for _, tc := range []struct{ spec, want string }{
		{`{}`, "spec.jwt: Required value"},
		{fmt.Sprintf(jwts, "", `{"claim":"sub","expression":"claims.sub"}`, ""), "claim and expression cannot both be specified"},
		{fmt.Sprintf(jwts, "", `{"prefix":"x"}`, ""), "either claim or expression must be specified"},
		{fmt.Sprintf(jwts, "", `{"expression":"claims.sub","prefix":"x"}`, ""), "prefix can only be specified when claim is specified"},
		{fmt.Sprintf(jwts, `"claimValidationRules":[{"expression":"true","requiredValue":"x"}],`, `{"claim":"sub"}`, ""), "requiredValue can only be specified when claim is specified"},
		{fmt.Sprintf(jwts, `"claimValidationRules":[{"claim":"hd","requiredValue":"x","message":"y"}],`, `{"claim":"sub"}`, ""), "message can only be specified when expression is specified"},
		{fmt.Sprintf(jwts, "", `{"claim":"sub"}`, ""), ""}, // without audiences and prefix, and with an expression that does not compile
		{`{"jwt":[` + strings.TrimSuffix(strings.Repeat(`{"issuer":{"url":"https://issuer.test"},"claimMappings":{"username":{"claim":"sub"},"groups":{"claim":"g"}}},`, 11), ",") + `]}`, "spec.jwt has 11 entries, at most 10 allowed"},
	} {
		object := kit.Request{Method: http.MethodPost, Path: "/clusters/root" + kit.TenancyPath + "workspaceauthenticationconfigurations?dryRun=All",
			Body: `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceAuthenticationConfiguration","metadata":{"name":"tried"},"spec":` + tc.spec + `}`}
		code, body := kit.Do(t, e.Proxy(), object)
		if tc.want == "" {
			require.Equal(t, http.StatusCreated, code, "%s", body)
			continue
		}
		require.Contains(t, []int{http.StatusUnprocessableEntity, http.StatusForbidden}, code, "%s", body)
		require.Contains(t, string(body), tc.want)
	}
}
