package authn_test

import (
	"context"
	"encoding/pem"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/request"
)

// entry returns the configuration of the issuer.
func (i *issuer) entry(prefix string) tenancyv1alpha1.JWTAuthenticator {
	return tenancyv1alpha1.JWTAuthenticator{
		Issuer: tenancyv1alpha1.Issuer{
			URL: i.URL, Audiences: []string{"shardplane"},
			CertificateAuthority: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})),
		},
		ClaimMappings: tenancyv1alpha1.ClaimMappings{
			Username: tenancyv1alpha1.PrefixedClaimOrExpression{Claim: "sub", Prefix: &prefix},
			Groups:   tenancyv1alpha1.PrefixedClaimOrExpression{Claim: "groups", Prefix: &prefix},
		},
	}
}

// tenants is an authentication with logical clusters of tenants.
type tenants struct {
	*authn.Authentication
	t *testing.T

	mu     sync.Mutex
	known  map[logicalcluster.Name][]*issuers.Configuration
	coming map[logicalcluster.Name]int
	faults []string
}

func newTenants(t *testing.T, change ...func(*authn.Options)) *tenants {
	t.Helper()
	o := authn.NewOptions()
	o.ClientCAFile, o.Workspaces.AllowedCIDRs = newAuthority(t, "clients").file, []string{"127.0.0.0/8"}
	for _, c := range change {
		c(&o)
	}
	w := &tenants{t: t, known: map[logicalcluster.Name][]*issuers.Configuration{}, coming: map[logicalcluster.Name]int{}}
	w.Authentication = running(t, o, authn.Sources{
		Workspace: func(ctx context.Context) authn.Workspace {
			w.mu.Lock()
			defer w.mu.Unlock()
			name := request.ScopeFrom(ctx).Cluster.Name
			if w.coming[name] > 0 {
				w.coming[name]--
				return authn.Workspace{Cluster: name, Incomplete: true}
			}
			return authn.Workspace{Cluster: name, Configurations: w.known[name]}
		},
		Report: func(_ context.Context, of *issuers.Configuration, fault string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.faults = append(w.faults, of.Name+": "+fault)
			return nil
		},
	})
	return w
}

// configure sets the configuration of a logical cluster.
func (w *tenants) configure(cluster logicalcluster.Name, entries ...tenancyv1alpha1.JWTAuthenticator) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[cluster] = []*issuers.Configuration{{
		ObjectMeta: metav1.ObjectMeta{Name: "of-" + cluster.String(), Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()}},
		Spec:       tenancyv1alpha1.WorkspaceAuthenticationConfigurationSpec{JWT: entries},
	}}
}

func (w *tenants) reported(part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(strings.Join(w.faults, "\n"), part)
}

func (w *tenants) userOf(cluster logicalcluster.Name, token string) (user.Info, error) {
	return userOf(request.WithClusterName(w.t.Context(), cluster), w.Authentication, token)
}

func (w *tenants) nameOf(cluster logicalcluster.Name, token string) string {
	info, _ := w.userOf(cluster, token)
	return info.GetName()
}

// TestWorkspaceUsers checks that users of a workspace's issuer are authenticated in that workspace, on the
// first request, and in no other.
func TestWorkspaceUsers(t *testing.T) {
	t.Parallel()
	provider, w := newIssuer(t), newTenants(t)
	w.configure("team", provider.entry("oidc:"))
	jane := provider.token(t, map[string]any{"groups": []string{"devs"}})
	info, err := w.userOf("team", jane)
	require.NoError(t, err)
	require.Equal(t, &user.DefaultInfo{
		Name: "oidc:jane", Groups: []string{"oidc:devs", "system:authenticated"},
		Extra: map[string][]string{"authentication.kcp.io/scopes": {"cluster:team"}, "authentication.kcp.io/cluster-name": {"team"}},
	}, info)
	require.Empty(t, w.nameOf("other", jane))
	require.Empty(t, w.nameOf("", jane))

	w.configure("twin", provider.entry("twin:"))
	w.coming["twin"] = 3
	require.Equal(t, "twin:jane", w.nameOf("twin", jane), "requests must wait for incomplete workspaces")
	require.Equal(t, "oidc:jane", w.nameOf("team", jane), "the user must depend on the logical cluster")

	ctx := request.WithClusterName(t.Context(), "team")
	response, ok, err := w.Reviewer().AuthenticateToken(authenticator.WithAudiences(ctx, w.Audiences), jane)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, authenticator.Audiences{"https://kcp.default.svc"}, response.Audiences)
	_, ok, _ = w.Reviewer().AuthenticateToken(authenticator.WithAudiences(ctx, authenticator.Audiences{"others"}), jane)
	require.False(t, ok, "the token must be rejected for other audiences")
	for what, claims := range map[string]map[string]any{
		"another audience": {"aud": "others"}, "another issuer": {"iss": "https://others.test"}, "expired": {"exp": time.Now().Add(-time.Minute).Unix()},
		"distributed claims": {"_claim_names": map[string]string{"groups": "x"}, "_claim_sources": map[string]any{"x": map[string]string{"endpoint": provider.URL}}},
	} {
		require.Empty(t, w.nameOf("team", provider.token(t, claims)), what)
	}
	require.Empty(t, w.nameOf("team", newIssuer(t).token(t, map[string]any{"iss": provider.URL})), "signed with another key")

	off := newTenants(t, func(o *authn.Options) { o.Workspaces.Enabled = false })
	off.configure("team", provider.entry("oidc:"))
	require.Empty(t, off.nameOf("team", jane))
}

// TestWorkspaceUsersAreConfined checks that a tenant's issuer cannot return users of the installation.
func TestWorkspaceUsersAreConfined(t *testing.T) {
	t.Parallel()
	provider, w := newIssuer(t), newTenants(t)
	entry := provider.entry("")
	entry.ClaimMappings.Extra = []tenancyv1alpha1.ExtraMapping{
		{Key: "authentication.kcp.io/scopes", ValueExpression: "['cluster:root']"},
		{Key: "authorization.kcp.io/warrant", ValueExpression: `'{"groups":["system:masters"]}'`},
		{Key: "example.com/team", ValueExpression: "'blue'"},
	}
	w.configure("team", entry)
	info, err := w.userOf("team", provider.token(t, map[string]any{"groups": []string{
		"system:masters", "system:kcp:admin", "system:serviceaccounts", "system:cluster:root", "system:anything", "apis.kcp.io:binding:system:authenticated", "devs",
	}}))
	require.NoError(t, err)
	require.Equal(t, []string{"devs", "system:authenticated"}, info.GetGroups())
	require.Equal(t, map[string][]string{
		"authentication.kcp.io/scopes": {"cluster:team"}, "authentication.kcp.io/cluster-name": {"team"}, "example.com/team": {"blue"},
	}, info.GetExtra())
	for _, name := range []string{"system:serviceaccount:default:robot", "system:admin", "system:"} {
		_, err := w.userOf("team", provider.token(t, map[string]any{"sub": name}))
		require.ErrorContains(t, err, "is reserved", name)
	}
	_, err = w.userOf("team", provider.token(t, map[string]any{"sub": " jane"}))
	require.Error(t, err, "HTTP headers would change the name")
	entry.ClaimMappings.Extra = []tenancyv1alpha1.ExtraMapping{{Key: "example.com/again", ValueExpression: "claims.groups"}}
	w.configure("team", entry)
	_, err = w.userOf("team", provider.token(t, map[string]any{"groups": slices.Repeat([]string{strings.Repeat("x", 1000)}, 40)}))
	require.ErrorContains(t, err, "have 80021 bytes, at most 65536 allowed")
}

// TestWorkspaceIssuers checks changes of keys and entries, and invalid configurations.
func TestWorkspaceIssuers(t *testing.T) {
	t.Parallel()
	provider, w := newIssuer(t), newTenants(t)
	w.configure("team", provider.entry("oidc:"))
	former := provider.token(t, map[string]any{"sub": "former"})
	require.Equal(t, "oidc:jane", w.nameOf("team", provider.token(t, nil)))
	provider.rotate(t)
	joe := provider.token(t, map[string]any{"sub": "joe"})
	eventually(t, "the new key is not fetched", func() bool { return w.nameOf("team", joe) == "oidc:joe" })
	require.Empty(t, w.nameOf("team", former), "the token with the former key must be rejected")

	w.configure("team", provider.entry("changed:"))
	require.Equal(t, "changed:joe", w.nameOf("team", joe), "a changed entry must take effect immediately")
	w.configure("team")
	require.Empty(t, w.nameOf("team", joe), "a removed entry must take effect immediately")

	large, err := os.ReadFile("../request/rsakeys/testdata/large.pem")
	require.NoError(t, err)
	for what, change := range map[string]func(*tenancyv1alpha1.JWTAuthenticator){
		"at least one audience": func(e *tenancyv1alpha1.JWTAuthenticator) { e.Issuer.Audiences = nil },
		"prefix":                func(e *tenancyv1alpha1.JWTAuthenticator) { e.ClaimMappings.Username.Prefix = nil },
		"compilation failed":    func(e *tenancyv1alpha1.JWTAuthenticator) { e.ClaimMappings.UID.Expression = "claims." },
		"certificate":           func(e *tenancyv1alpha1.JWTAuthenticator) { e.Issuer.CertificateAuthority = "none" },
		"a key has 8676 bits":   func(e *tenancyv1alpha1.JWTAuthenticator) { e.Issuer.CertificateAuthority = string(large) },
		"must differ":           func(e *tenancyv1alpha1.JWTAuthenticator) { e.Issuer.DiscoveryURL = e.Issuer.URL },
		"4097 bytes of expressions": func(e *tenancyv1alpha1.JWTAuthenticator) {
			e.ClaimMappings.UID.Expression = strings.Repeat(" ", 4097)
		},
		"33 rules and extra attributes": func(e *tenancyv1alpha1.JWTAuthenticator) {
			e.UserValidationRules = make([]tenancyv1alpha1.UserValidationRule, 33)
		},
		"must be JSON with a jwks_uri":        func(e *tenancyv1alpha1.JWTAuthenticator) { e.Issuer.DiscoveryURL = e.Issuer.URL + "/keys" },
		"certificate signed by unknown autho": func(e *tenancyv1alpha1.JWTAuthenticator) { e.Issuer.CertificateAuthority = "" },
	} {
		entry := provider.entry("oidc:")
		change(&entry)
		w.configure("team", entry)
		_, err := w.userOf("team", joe)
		require.ErrorContains(t, err, what)
		eventually(t, "the fault is not reported: "+what, func() bool { return w.reported("of-team: ") && w.reported(what) })
		both := provider.entry("oidc:")
		w.configure("team", entry, both)
		require.Equal(t, "oidc:joe", w.nameOf("team", joe), "the other entry of the issuer must accept the token")
	}
	entry := provider.entry("oidc:")
	entry.Issuer.DiscoveryURL = provider.URL + "/.well-known/openid-configuration"
	w.configure("team", entry)
	require.Equal(t, "oidc:joe", w.nameOf("team", joe), "the discovery document must be used")

	private := newTenants(t, func(o *authn.Options) { o.Workspaces.AllowedCIDRs = nil })
	private.configure("team", provider.entry("oidc:"))
	_, err = private.userOf("team", joe)
	require.ErrorContains(t, err, "--workspace-issuer-allowed-cidrs does not allow")
}

// TestDeadWorkspaceIssuer checks that an issuer that does not respond, and whose tokens use all slots of its
// tenant, delays no other tokens.
func TestDeadWorkspaceIssuer(t *testing.T) {
	t.Parallel()
	dead, living, w := silent(t), newIssuer(t), newTenants(t)
	w.configure("team", dead.entry("dead:"), living.entry("living:"))
	w.configure("other", living.entry("other:"))
	token := dead.token(t, nil)
	var waiting sync.WaitGroup
	var refused atomic.Int64
	for range 100 {
		waiting.Go(func() {
			if _, err := w.userOf("team", token); err != nil && strings.Contains(err.Error(), "too many tokens") {
				refused.Add(1)
			}
		})
	}
	<-dead.requested
	require.Equal(t, "other:jane", w.nameOf("other", living.token(t, nil)), "tokens of another tenant must not wait")
	eventually(t, "no token is rejected immediately", func() bool { return refused.Load() > 0 })
	close(dead.released)
	waiting.Wait()
	eventually(t, "the token is not accepted after the response of the issuer", func() bool { return w.nameOf("team", token) == "dead:jane" })
	require.Equal(t, "living:jane", w.nameOf("team", living.token(t, nil)))
}

// TestUnresponsiveIssuerDoesNotBlockOthers has both issuers in one configuration.
func TestUnresponsiveIssuerDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	dead, living, w := silent(t), newIssuer(t), newTenants(t)
	w.configure("team", dead.entry("dead:"), living.entry("living:"))
	results := make(chan string, 1)
	token := dead.token(t, nil)
	go func() { results <- w.nameOf("team", token) }()
	<-dead.requested
	require.Equal(t, "living:jane", w.nameOf("team", living.token(t, nil)))
	select {
	case <-results:
		require.Fail(t, "the token of the unresponsive issuer must wait")
	default:
	}
	require.Empty(t, <-results, "the token of the unresponsive issuer must be rejected")
	close(dead.released)
}
