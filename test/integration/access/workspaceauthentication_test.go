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

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

const configMapsPath = "/api/v1/namespaces/default/configmaps"

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
		var answer any = map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"}
		if r.URL.Path == "/keys" {
			answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}}
		}
		_ = json.NewEncoder(w).Encode(answer)
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

// configure creates a WorkspaceAuthenticationConfiguration.
func configure(e *kit.Env, cluster, name string, entries ...tenancyv1alpha1.JWTAuthenticator) {
	e.T.Helper()
	_, err := kinds.WorkspaceAuthenticationConfigurations.In(e.ProxyClient.Cluster(kit.Path(cluster))).Create(e.T.Context(), &tenancyv1alpha1.WorkspaceAuthenticationConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: tenancyv1alpha1.WorkspaceAuthenticationConfigurationSpec{JWT: entries},
	}, metav1.CreateOptions{})
	require.NoError(e.T, err)
}

// typed creates a WorkspaceType that names configurations.
func createWorkspaceType(e *kit.Env, cluster, name string, configurations ...string) {
	e.T.Helper()
	wt := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, c := range configurations {
		wt.Spec.AuthenticationConfigurations = append(wt.Spec.AuthenticationConfigurations, tenancyv1alpha1.AuthenticationConfigurationReference{Name: c})
	}
	_, err := kinds.WorkspaceTypes.In(e.ProxyClient.Cluster(kit.Path(cluster))).Create(e.T.Context(), wt, metav1.CreateOptions{})
	require.NoError(e.T, err)
}

// ofType creates a workspace of a type, on a shard, and returns its logical cluster.
func ofType(e *kit.Env, parent, name, shard, typePath, typeName string) string {
	e.T.Helper()
	in := kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path(parent)))
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: tenancyv1alpha1.WorkspaceSpec{
		Type:     &tenancyv1alpha1.WorkspaceTypeReference{Path: typePath, Name: tenancyv1alpha1.WorkspaceTypeName(typeName)},
		Location: &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: labels.Set{"name": shard}}},
	}}
	e.Eventually("the workspace is created", func() bool { // its type is known soon
		_, err := in.Create(e.T.Context(), ws, metav1.CreateOptions{})
		return err == nil
	})
	e.Eventually("it is ready", func() bool {
		got, err := in.Get(e.T.Context(), name, metav1.GetOptions{})
		require.NoError(e.T, err)
		ws = got
		return got.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
	return ws.Spec.Cluster
}

// review returns whose a token is in a logical cluster, as a server says.
func review(t *testing.T, config *rest.Config, cluster, token string) authenticationv1.TokenReviewStatus {
	t.Helper()
	got, err := kit.ClusterClientset(t, config, cluster).AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return got.Status
}

// known waits until a server knows whose a token is in a logical cluster. Most do at once: a token waits
// for what is not known yet, of a new logical cluster, but not for as long as a machine may stand still.
func untilAuthenticated(e *kit.Env, config *rest.Config, cluster, token string) (status authenticationv1.TokenReviewStatus) {
	e.T.Helper()
	e.Eventually("the token is known", func() bool {
		status = review(e.T, config, cluster, token)
		return status.Authenticated
	})
	return status
}

// TestWorkspaceAuthentication: workspaces of a type know the users of the issuers that it names,
// on whatever shard they are, and nobody else does.
func TestWorkspaceAuthentication(t *testing.T) {
	t.Parallel()
	e := kit.SharedUnchanged(t)
	provider := newIssuer(t)
	home := ofType(e, "root", "issuers", "root", "root", "universal")
	configure(e, home, "own", provider.entry("oidc:"))
	createWorkspaceType(e, home, "team", "own")
	here := ofType(e, "root:issuers", "here", "root", "root:issuers", "team")
	jane := provider.token(map[string]any{"groups": []string{"devs", "system:masters"}})
	// Neither shard has asked the issuer before.
	for cluster, shard := range map[string]*rest.Config{here: e.Shard(0), ofType(e, "root:issuers", "there", "shard-1", home, "team"): e.Shard(1)} {
		status := untilAuthenticated(e, shard, cluster, jane)
		require.Equal(t, []string{"https://kcp.default.svc"}, status.Audiences)
		require.Equal(t, "oidc:jane", status.User.Username)
		require.Equal(t, []string{"oidc:devs", "oidc:system:masters", "system:authenticated"}, status.User.Groups)
		require.Equal(t, authenticationv1.ExtraValue{"cluster:" + cluster}, status.User.Extra["authentication.kcp.io/scopes"])
		require.Equal(t, authenticationv1.ExtraValue{cluster}, status.User.Extra["authentication.kcp.io/cluster-name"])

		mayEverything(t, kit.ClusterClientset(t, e.Proxy(), cluster), "jane", rbacv1.Subject{Kind: "User", Name: "oidc:jane"})
		for _, server := range []*rest.Config{e.Proxy(), shard} {
			config := kit.WithToken(server, jane)
			e.Eventually("the binding is known", func() bool { return codeOf(t, config, "/clusters/"+cluster+configMapsPath) == http.StatusOK })
			who, err := kit.ClusterClientset(t, config, cluster).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.Equal(t, status.User, who.Status.UserInfo)
			for _, other := range []string{"root", "root:issuers", home, "root:nowhere", "*"} {
				require.Equal(t, http.StatusUnauthorized, codeOf(t, config, "/clusters/"+other+configMapsPath), other)
			}
			require.Equal(t, http.StatusUnauthorized, codeOf(t, config, "/api"))
			require.Equal(t, http.StatusUnauthorized, codeOf(t, config, "/metrics"))
		}
	}
	config := kit.WithToken(e.Proxy(), jane)
	require.Equal(t, http.StatusOK, codeOf(t, config, "/clusters/root:issuers:here"+configMapsPath), "by the path, too")
	require.Equal(t, http.StatusOK, codeOf(t, config, "/clusters/root:issuers:there"+configMapsPath))
	require.False(t, review(t, e.Shard(0), home, jane).Authenticated, "where the type is, nobody has said so")

	t.Run("extended types do not count", func(t *testing.T) {
		_, err := kinds.WorkspaceTypes.In(e.ProxyClient.Cluster(kit.Path(home))).Create(t.Context(), &tenancyv1alpha1.WorkspaceType{
			ObjectMeta: metav1.ObjectMeta{Name: "extends"},
			Spec:       tenancyv1alpha1.WorkspaceTypeSpec{Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: []tenancyv1alpha1.WorkspaceTypeReference{{Name: "team", Path: "root:issuers"}}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.False(t, review(t, e.Shard(0), ofType(e, "root:issuers", "extends", "root", "root:issuers", "extends"), jane).Authenticated)
	})
	t.Run("system users", func(t *testing.T) {
		configure(e, home, "unprefixed", provider.entry(""))
		createWorkspaceType(e, home, "unprefixed", "unprefixed")
		cluster := ofType(e, "root:issuers", "unprefixed", "shard-1", "root:issuers", "unprefixed")
		status := untilAuthenticated(e, e.Shard(1), cluster, jane)
		require.Equal(t, []string{"devs", "system:authenticated"}, status.User.Groups, "%+v", status)
		robot := provider.token(map[string]any{"sub": "system:serviceaccount:default:default"})
		require.Contains(t, review(t, e.Shard(1), cluster, robot).Error, "is reserved")
		for _, server := range []*rest.Config{e.Proxy(), e.Shard(1)} {
			e.Eventually("she is known, and nobody has let her in", func() bool {
				return codeOf(t, kit.WithToken(server, jane), "/clusters/"+cluster+configMapsPath) == http.StatusForbidden
			})
			require.Equal(t, http.StatusUnauthorized, codeOf(t, kit.WithToken(server, robot), "/clusters/"+cluster+configMapsPath))
		}
	})
}

// TestWorkspaceAuthenticationSchema: the API refuses what kcp's refuses.
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
		{fmt.Sprintf(jwts, "", `{"claim":"sub"}`, ""), ""}, // no audience, no prefix, and no expression that compiles
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
