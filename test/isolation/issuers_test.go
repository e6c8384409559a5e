package isolation

import (
	"crypto/ecdsa"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
)

const tenancyGroup = "/apis/tenancy.kcp.io/v1alpha1/"

// testIssuers holds that a tenant whose issuer names whomever it likes gets nothing by that in
// any other workspace, nothing of the system's in its own, and that servers call no address for
// it that is not public.
func (w *world) testIssuers(t *testing.T) {
	key := w.anyKey()
	issuer := newIssuer(t, key)
	lab, inLab := w.alpha.path+":issuers", "/clusters/"+w.alpha.path+":issuers"
	create := func(in, plural, kind, name, spec string) {
		t.Helper()
		body := `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"` + kind + `","metadata":{"name":"` + name + `"},"spec":` + spec + `}`
		require.Eventually(t, func() bool { return w.mallory(t, http.MethodPost, in+tenancyGroup+plural, body).code < 300 }, testTimeout, 20*time.Millisecond, "%s %s is created", kind, name)
	}
	ready := func(in, name string) string {
		t.Helper()
		var ws struct {
			Spec   struct{ Cluster string }
			Status struct{ Phase string }
		}
		require.Eventually(t, func() bool {
			got := w.mallory(t, http.MethodGet, in+tenancyGroup+"workspaces/"+name, "")
			return got.code == http.StatusOK && json.Unmarshal(got.body, &ws) == nil && ws.Status.Phase == "Ready"
		}, testTimeout, 20*time.Millisecond, "%s is ready", name)
		return ws.Spec.Cluster
	}
	entry := func(url, prefix string) string {
		ca, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})))
		require.NoError(t, err)
		return `{"issuer":{"url":"` + url + `","audiences":["x"],"certificateAuthority":` + string(ca) + `},"claimMappings":{"username":{"claim":"sub","prefix":"` + prefix + `"},"groups":{"claim":"groups","prefix":""},` +
			`"extra":[{"key":"authentication.kcp.io/scopes","valueExpression":"['cluster:` + w.bravo.name + `']"},{"key":"authorization.kcp.io/warrant","valueExpression":"claims.warrant"}]}}`
	}
	create("/clusters/$A$", "workspaces", "Workspace", "issuers", `{"type":{"name":"universal","path":"root"}}`)
	ready("/clusters/$A$", "issuers")
	create(inLab, "workspaceauthenticationconfigurations", "WorkspaceAuthenticationConfiguration", "evil", `{"jwt":[`+entry(issuer.URL, "")+`]}`)
	// What others have cannot be named.
	create(inLab, "workspacetypes", "WorkspaceType", "evil", `{"extend":{"with":[{"name":"universal","path":"root"}]},"authenticationConfigurations":[{"name":"evil"},{"name":"`+w.bravo.path+`:treasure"},{"name":"../`+w.bravo.name+`/treasure"}]}`)
	create(inLab, "workspaces", "Workspace", "evil", `{"type":{"name":"evil","path":"`+lab+`"}}`)
	evil := ready(inLab, "evil")

	warrant := `{"user":"kcp-admin","groups":["system:masters","system:kcp:admin"]}`
	all := []string{"system:masters", "system:kcp:admin", "system:kcp:logical-cluster-admin", "system:serviceaccounts", "system:cluster:" + w.bravo.name, "system:authenticated", "apis.kcp.io:binding:system:kcp:admin"}
	token := func(name string) string {
		return issue(t, key, map[string]any{"iss": issuer.URL, "aud": "x", "sub": name, "groups": all, "warrant": warrant, "exp": time.Now().Add(time.Hour).Unix()})
	}
	named := []string{
		"kcp-admin", "user-2", "system:apiserver", "system:serviceaccount:default:robot", "system:kcp:serviceaccount:" + w.bravo.name + ":default:robot", "system:admin",
	}
	first := len(w.whos)
	for _, name := range named {
		w.whos = append(w.whos, &who{name: "as " + name + " of alpha's issuer", token: token(name)})
	}
	defer func() { w.whos = w.whos[:first] }()
	get := func(who, target int, path string, lines ...string) answer {
		t.Helper()
		got, found := w.attack(t.Context(), input{who: who, target: target, wire: true, raw: strings.Join(append([]string{"GET " + path + " HTTP/1.1"}, append(lines, "Connection: close")...), "\r\n") + "\r\n\r\n"})
		if found != nil {
			t.Fatal(w.describe(*found))
		}
		return got
	}
	refusals := []int{http.StatusUnauthorized, http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound}
	for who := first; who < len(w.whos); who++ {
		for target, at := range w.targets {
			for _, path := range []string{"/clusters/$B$" + secretPath, "/clusters/$BPATH$" + secretList, "/clusters/root" + secretList, "/clusters/$A$" + secretList, inLab + secretList, "/clusters/*" + secretList, "/clusters/system:admin" + secretList, "/metrics", "/api"} {
				got := get(who, target, path)
				require.Contains(t, refusals, got.code, "%s at %s, %s: %s", w.whos[who].name, at.name, path, got)
			}
			for _, path := range []string{"/clusters/" + evil + secretList, "/clusters/" + evil + "/api/v1/namespaces/default/secrets"} {
				got := get(who, target, path)
				require.Contains(t, refusals, got.code, "%s at %s, %s: nobody has let it in: %s", w.whos[who].name, at.name, path, got)
			}
		}
	}

	// Who administers that workspace has no more by being named so, and impersonates nobody outside.
	require.Eventually(t, func() bool {
		return w.mallory(t, http.MethodPost, "/clusters/"+evil+"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"evil"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"kcp-admin"}]}`).code < 300
	}, testTimeout, 20*time.Millisecond, "mallory's own workspace")
	own := "/clusters/" + evil + "/api/v1/namespaces/default/configmaps"
	require.Eventually(t, func() bool { return get(first, atProxy, own).code == http.StatusOK }, testTimeout, 20*time.Millisecond, "the binding counts")
	for _, lines := range [][]string{nil, {"Impersonate-User: kcp-admin", "Impersonate-Group: system:masters"}, {"X-Remote-User: kcp-admin", "X-Remote-Group: system:masters"}} {
		require.Equal(t, http.StatusUnauthorized, get(first, atProxy, "/clusters/$B$"+secretPath, lines...).code)
		got := get(first, atProxy, "/clusters/"+evil+"/apis/core.kcp.io/v1alpha1/logicalclusters/cluster/../../../../../clusters/"+w.bravo.name+secretPath, lines...)
		require.NotEqual(t, http.StatusOK, got.code, "%s", got)
	}
	review := w.mallory(t, http.MethodPost, "/clusters/"+evil+"/apis/authentication.k8s.io/v1/tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"`+token("kcp-admin")+`"}}`)
	require.Equal(t, http.StatusCreated, review.code, "%s", review)
	require.Contains(t, string(review.body), `"groups":["system:authenticated"]`)
	require.Contains(t, string(review.body), `"extra":{"authentication.kcp.io/cluster-name":["`+evil+`"],"authentication.kcp.io/scopes":["cluster:`+evil+`"]}`)

	// Addresses that tenants may not reach. Loopback is open to this test's issuer.
	calls := w.hook.calls.Load()
	port := w.hook.URL[strings.LastIndex(w.hook.URL, ":"):]
	for _, host := range []string{"0.0.0.0" + port, "[::]" + port, "[::ffff:0:0]" + port, "10.0.0.1", "169.254.169.254", "192.168.0.1", "[fd00::1]", "[fe80::1]", "[64:ff9b::a00:1]" + port} {
		url := "https://" + host
		patch := w.mallory(t, http.MethodPatch, inLab+tenancyGroup+"workspaceauthenticationconfigurations/evil", `{"spec":{"jwt":[`+entry(url, "")+`]}}`)
		require.Equal(t, http.StatusOK, patch.code, "%s", patch)
		body := `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"` + issue(t, key, map[string]any{"iss": url, "aud": "x", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix()}) + `"}}`
		require.Eventually(t, func() bool {
			got := w.mallory(t, http.MethodPost, "/clusters/"+evil+"/apis/authentication.k8s.io/v1/tokenreviews", body)
			require.NotContains(t, string(got.body), `"authenticated":true`)
			return strings.Contains(string(got.body), "--workspace-issuer-allowed-cidrs does not allow")
		}, testTimeout, 20*time.Millisecond, "%s is refused", host)
	}
	require.Equal(t, calls, w.hook.calls.Load(), "an address that is not public was called")
}

// newIssuer starts an issuer with a key.
func newIssuer(t *testing.T, key *ecdsa.PrivateKey) *httptest.Server {
	t.Helper()
	var server *httptest.Server
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = map[string]string{"issuer": server.URL, "jwks_uri": server.URL + "/keys"}
		if r.URL.Path == "/keys" {
			answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return server
}

// issue makes a token of an issuer's.
func issue(t *testing.T, key *ecdsa.PrivateKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil)
	require.NoError(t, err)
	token, err := jwt.Signed(signer).Claims(claims).CompactSerialize()
	require.NoError(t, err)
	return token
}
