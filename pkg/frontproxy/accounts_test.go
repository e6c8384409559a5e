package frontproxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"io"
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
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/keyutil"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
	"github.com/shardplane/shardplane/test/background"
)

func TestServiceAccountTokens(t *testing.T) {
	w := newWorld(t, "root")
	w.cluster(t, "root", "one")
	w.cluster(t, "root", "two")
	_, keyFile := w.clientCA.issue(t, w.dir, "accounts")
	w.options.Authentication.ServiceAccounts.KeyFiles = []string{keyFile}
	shard := w.shards["root"]
	shard.handle(func(rw http.ResponseWriter, r *http.Request) {
		cluster, account, isAccount := strings.Cut(r.URL.Path, "/api/v1/namespaces/ns/serviceaccounts/")
		rw.Header().Set("Content-Type", "application/json")
		switch {
		case !isAccount:
			shard.echo(rw, r)
		case cluster == "/clusters/one" && account == "robot":
			_, _ = io.WriteString(rw, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"robot","namespace":"ns","uid":"robot-uid"}}`)
		default:
			rw.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(rw, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
		}
	})
	w.ready(t, "one", "root", "two", "root")
	private, err := keyutil.PrivateKeyFromFile(keyFile)
	require.NoError(t, err)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: private}, nil)
	require.NoError(t, err)
	token := func(bound, legacy string) string {
		claims := map[string]any{
			"iss": authn.DefaultServiceAccountIssuer, "aud": authn.DefaultServiceAccountIssuer,
			"sub": "system:serviceaccount:ns:robot", "exp": time.Now().Add(time.Hour).Unix(),
			"kubernetes.io": map[string]any{"clusterName": bound, "namespace": "ns", "serviceaccount": map[string]any{"name": "robot", "uid": "robot-uid"}},
			"kubernetes.io/serviceaccount/clusterName": legacy,
		}
		text, err := jwt.Signed(signer).Claims(claims).CompactSerialize()
		require.NoError(t, err)
		return text
	}
	for name, tc := range map[string]struct {
		bound, legacy string
		want          int
	}{
		"no claim":                   {want: http.StatusUnauthorized},
		"one":                        {bound: "one", want: http.StatusOK},
		"equal claims":               {bound: "one", legacy: "one", want: http.StatusOK},
		"different claims":           {bound: "one", legacy: "two", want: http.StatusUnauthorized},
		"different claims, reversed": {bound: "two", legacy: "one", want: http.StatusUnauthorized},
		"foreign":                    {bound: "two", want: http.StatusUnauthorized},
		"unknown":                    {bound: "three", want: http.StatusUnauthorized},
		"path":                       {bound: "root:one", want: http.StatusUnauthorized},
		"system cluster":             {bound: "system:admin", want: http.StatusUnauthorized},
		"only the legacy claim":      {legacy: "one", want: http.StatusUnauthorized},
	} {
		robot := w.withCerts(t)
		robot.token = token(tc.bound, tc.legacy)
		for _, path := range []string{"/clusters/one/api", "/clusters/two/api"} {
			res, body := robot.get(t, path, "X-Remote-Extra-Authentication.kcp.io%2Fcluster-Name", "two")
			require.Equal(t, tc.want, res.StatusCode, "%s at %s: %s", name, path, body)
			if tc.want == http.StatusOK {
				require.Equal(t, []string{"one"}, robot.echoed(t, path).Header.Values("X-Remote-Extra-Authentication.kcp.io%2fcluster-Name"), "%s at %s", name, path)
			}
		}
	}
}

// TestScopedUsersCannotReadProcess checks that out-of-scope members of a group have no access to the process.
func TestScopedUsersCannotReadProcess(t *testing.T) {
	scoped := map[string][]string{request.ExtraScopes: {"cluster:root"}}
	for _, group := range []string{user.SystemPrivilegedGroup, request.GroupAdmin} {
		require.True(t, mayReadProcess(t.Context(), &user.DefaultInfo{Name: "u", Groups: []string{group}}))
		require.False(t, mayReadProcess(t.Context(), &user.DefaultInfo{Name: "u", Groups: []string{group}, Extra: scoped}))
		require.False(t, mayReadProcess(t.Context(), &user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Groups: []string{group}}))
	}
}

// newIssuer starts an OIDC provider, and returns its configuration and a token.
func newIssuer(t *testing.T) (entry tenancyv1alpha1.JWTAuthenticator, token string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	var url string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var document any = map[string]string{"issuer": url, "jwks_uri": url + "/keys"}
		if r.URL.Path == "/keys" {
			document = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}}
		}
		_ = json.NewEncoder(w).Encode(document)
	}))
	t.Cleanup(server.Close)
	url = server.URL
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil)
	require.NoError(t, err)
	token, err = jwt.Signed(signer).Claims(map[string]any{"iss": url, "aud": "x", "sub": "jane", "groups": []string{"devs", "system:kcp:admin"}, "exp": time.Now().Add(time.Hour).Unix()}).CompactSerialize()
	require.NoError(t, err)
	prefix := ""
	entry.Issuer = tenancyv1alpha1.Issuer{
		URL: url, Audiences: []string{"x"}, CertificateAuthority: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	}
	entry.ClaimMappings.Username = tenancyv1alpha1.PrefixedClaimOrExpression{Claim: "sub", Prefix: &prefix}
	entry.ClaimMappings.Groups = tenancyv1alpha1.PrefixedClaimOrExpression{Claim: "groups", Prefix: &prefix}
	return entry, token
}

// specialType adds the WorkspaceType special, with the configuration issuers, to the logical cluster home of a shard.
func (w *world) specialType(t testing.TB, shard string) {
	t.Helper()
	special := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metaIn("home", "special")}
	special.Spec.AuthenticationConfigurations = []tenancyv1alpha1.AuthenticationConfigurationReference{{Name: "issuers"}}
	w.shards[shard].data.Put(t, kinds.WorkspaceTypes.GroupVersionResource, special)
}

// TestWorkspaceIssuers checks that users of a workspace's issuers are authenticated in that
// workspace only, for shards and servers of the mapping file.
func TestWorkspaceIssuers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "other")
	w.options.Authentication.Workspaces.AllowedCIDRs = []string{"127.0.0.0/8"}
	mapped := w.addMapped(t, "mapped")
	w.mapping(t, "/services/of/{cluster}", mapped, ", extra_header_prefix: X-More-")
	entry, token := newIssuer(t)
	w.child(t, "other", "home", "home")
	w.cluster(t, "root", "team", func(lc *corev1alpha1.LogicalCluster) {
		lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey] = "root:home:special"
	})
	w.workspace(t, "root", "root", "team", "team")
	w.cluster(t, "root", "plain")
	w.specialType(t, "other")
	w.shards["other"].data.Put(t, kinds.WorkspaceAuthenticationConfigurations.GroupVersionResource, &tenancyv1alpha1.WorkspaceAuthenticationConfiguration{
		ObjectMeta: metaIn("home", "issuers"),
		Spec:       tenancyv1alpha1.WorkspaceAuthenticationConfigurationSpec{JWT: []tenancyv1alpha1.JWTAuthenticator{entry}},
	})
	w.ready(t)
	jane := w.withCerts(t)
	jane.token = token
	for path, prefix := range map[string]string{
		"/clusters/root:team/api": "X-Remote-Extra-", "/clusters/team/api/v1/namespaces": "X-Remote-Extra-", "/services/of/root:team/api": "X-More-",
	} {
		jane.eventually(t, path, http.StatusOK)
		got := jane.echoed(t, path).Header
		require.Equal(t, []string{"jane"}, got["X-Remote-User"], path)
		require.Equal(t, []string{"devs", "system:authenticated"}, got["X-Remote-Group"])
		require.Equal(t, []string{"cluster:team"}, got[http.CanonicalHeaderKey(prefix+"Authentication.kcp.io%2fscopes")], "%v", got)
		require.Equal(t, []string{"team"}, got[http.CanonicalHeaderKey(prefix+"Authentication.kcp.io%2fcluster-name")])
		require.Empty(t, got["Authorization"])
	}
	for _, path := range []string{"/clusters/root:home/api", "/clusters/plain/api", "/clusters/unknown/api", "/services/of/plain/api", "/services/apiexport/team/x/clusters/team/api", "/metrics", "/api"} {
		jane.want(t, path, http.StatusUnauthorized)
	}
	w.shards["other"].data.Delete(t, kinds.WorkspaceAuthenticationConfigurations.GroupVersionResource, "", "home", "", "issuers")
	jane.eventually(t, "/clusters/team/api", http.StatusUnauthorized)
}

// TestWorkspaceIssuersNotSynced checks that users are not rejected while a type, or its
// configurations, have not been read.
func TestWorkspaceIssuersNotSynced(t *testing.T) {
	w := newWorld(t, "root")
	index := workspaceindex.NewWorkspaceIndex()
	s := &router{shards: &shards{index: index, ways: map[string]way{}}, gate: &gate{resolver: newResolver(index, 0, 0, newMetrics(nil).indexWaits)}}
	lc := workspaceindex.LogicalCluster{Name: "home", Shard: "root", Created: 1}
	lc.Phase = corev1alpha1.LogicalClusterPhaseReady
	index.UpsertLogicalCluster("root", lc)
	lc.Name, lc.Type = "team", "home:special"
	index.UpsertLogicalCluster("root", lc)
	known := func() authn.Workspace {
		return s.workspaceIssuers(context.WithValue(t.Context(), recordKey{}, &record{path: parsedPath{at: address{path: "team", valid: true}}, received: time.Now()}))
	}
	require.True(t, known().Incomplete, "data must be incomplete before the shard is followed")
	f := newFollower(peers.NewPeer("root", w.factory(t, w.shards["root"].url())), index, &dataEpochs{})
	s.shards.ways["root"] = way{follower: f}
	require.True(t, known().Incomplete, "data must be incomplete before the types have synced")
	group := &client.Group{}
	group.Add(f.types)
	background.Run(t.Context(), t, group.Run)
	require.NoError(t, f.types.WaitForSync(t.Context()))
	require.False(t, known().Incomplete, "data must be complete if the type does not exist")
	w.specialType(t, "root")
	require.Eventually(t, func() bool { return known().Incomplete }, timeout, 10*time.Millisecond, "data must be incomplete before the authentication configurations have synced")
}
