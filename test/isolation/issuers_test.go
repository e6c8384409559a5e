package isolation

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

const tenancyGroup = "/apis/tenancy.kcp.io/v1alpha1/"

// testIssuers checks that arbitrary names and groups of a tenant's issuer give no access to other
// workspaces, and no system privileges in its own one, and that servers must not call non-public
// issuer addresses.
func (w *world) testIssuers(t *testing.T) {
	issuer, sign := harness.Issuer(t)
	lab, inLab := w.alpha.path+":issuers", "/clusters/"+w.alpha.path+":issuers"
	create := func(in, plural, kind, name, spec string) {
		t.Helper()
		body := `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"` + kind + `","metadata":{"name":"` + name + `"},"spec":` + spec + `}`
		require.Eventually(t, func() bool { return w.mallory(t, http.MethodPost, in+tenancyGroup+plural, body).code < 300 }, testTimeout, 20*time.Millisecond, "%s %s was not created", kind, name)
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
		}, testTimeout, 20*time.Millisecond, "%s is not Ready", name)
		return ws.Spec.Cluster
	}
	entry := func(url, prefix string) string {
		ca, err := json.Marshal(string(harness.CABundle(issuer)))
		require.NoError(t, err)
		return `{"issuer":{"url":"` + url + `","audiences":["x"],"certificateAuthority":` + string(ca) + `},"claimMappings":{"username":{"claim":"sub","prefix":"` + prefix + `"},"groups":{"claim":"groups","prefix":""},` +
			`"extra":[{"key":"authentication.kcp.io/scopes","valueExpression":"['cluster:` + w.bravo.name + `']"},{"key":"authorization.kcp.io/warrant","valueExpression":"claims.warrant"}]}}`
	}
	create("/clusters/$A$", "workspaces", "Workspace", "issuers", `{"type":{"name":"universal","path":"root"}}`)
	ready("/clusters/$A$", "issuers")
	create(inLab, "workspaceauthenticationconfigurations", "WorkspaceAuthenticationConfiguration", "evil", `{"jwt":[`+entry(issuer.URL, "")+`]}`)
	// Authentication configurations of other workspaces cannot be referenced.
	create(inLab, "workspacetypes", "WorkspaceType", "evil", `{"extend":{"with":[{"name":"universal","path":"root"}]},"authenticationConfigurations":[{"name":"evil"},{"name":"`+w.bravo.path+`:treasure"},{"name":"../`+w.bravo.name+`/treasure"}]}`)
	create(inLab, "workspaces", "Workspace", "evil", `{"type":{"name":"evil","path":"`+lab+`"}}`)
	evil := ready(inLab, "evil")

	warrant := `{"user":"kcp-admin","groups":["system:masters","system:kcp:admin"]}`
	all := []string{"system:masters", "system:kcp:admin", "system:kcp:logical-cluster-admin", "system:serviceaccounts", "system:cluster:" + w.bravo.name, "system:authenticated", "apis.kcp.io:binding:system:kcp:admin"}
	token := func(name string) string {
		return sign(map[string]any{"iss": issuer.URL, "aud": "x", "sub": name, "groups": all, "warrant": warrant, "exp": time.Now().Add(time.Hour).Unix()})
	}
	usernames := []string{
		"kcp-admin", "user-2", "system:apiserver", "system:serviceaccount:default:robot", "system:kcp:serviceaccount:" + w.bravo.name + ":default:robot", "system:admin",
	}
	first := len(w.attackers)
	for _, name := range usernames {
		w.attackers = append(w.attackers, &attacker{name: name + " by alpha's issuer", token: token(name)})
	}
	defer func() { w.attackers = w.attackers[:first] }()
	send := func(attacker, target int, path string, lines ...string) response {
		t.Helper()
		return w.mustAttack(t, input{attacker: attacker, target: target, wire: true, raw: get(path, lines...)})
	}
	rejections := []int{http.StatusUnauthorized, http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound}
	for attacker := first; attacker < len(w.attackers); attacker++ {
		for target, at := range w.targets {
			for _, path := range []string{"/clusters/$B$" + secretPath, "/clusters/$BPATH$" + secretList, "/clusters/root" + secretList, "/clusters/$A$" + secretList, inLab + secretList, "/clusters/*" + secretList, "/clusters/system:admin" + secretList, "/metrics", "/api"} {
				got := send(attacker, target, path)
				require.Contains(t, rejections, got.code, "%s at %s, %s: %s", w.attackers[attacker].name, at.name, path, got)
			}
			for _, path := range []string{"/clusters/" + evil + secretList, "/clusters/" + evil + "/api/v1/namespaces/default/secrets"} {
				got := send(attacker, target, path)
				require.Contains(t, rejections, got.code, "%s at %s, %s: no binding: %s", w.attackers[attacker].name, at.name, path, got)
			}
		}
	}

	// The names and groups add no privileges for an administrator of that workspace, and
	// impersonation is limited to it.
	require.Eventually(t, func() bool {
		return w.mallory(t, http.MethodPost, "/clusters/"+evil+"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"evil"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"kcp-admin"}]}`).code < 300
	}, testTimeout, 20*time.Millisecond, "the binding in mallory's workspace was not created")
	own := "/clusters/" + evil + "/api/v1/namespaces/default/configmaps"
	require.Eventually(t, func() bool { return send(first, atProxy, own).code == http.StatusOK }, testTimeout, 20*time.Millisecond, "the binding has no effect")
	for _, lines := range [][]string{nil, {"Impersonate-User: kcp-admin", "Impersonate-Group: system:masters"}, {"X-Remote-User: kcp-admin", "X-Remote-Group: system:masters"}} {
		require.Equal(t, http.StatusUnauthorized, send(first, atProxy, "/clusters/$B$"+secretPath, lines...).code)
		got := send(first, atProxy, "/clusters/"+evil+"/apis/core.kcp.io/v1alpha1/logicalclusters/cluster/../../../../../clusters/"+w.bravo.name+secretPath, lines...)
		require.NotEqual(t, http.StatusOK, got.code, "%s", got)
	}
	review := w.mallory(t, http.MethodPost, "/clusters/"+evil+"/apis/authentication.k8s.io/v1/tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"`+token("kcp-admin")+`"}}`)
	require.Equal(t, http.StatusCreated, review.code, "%s", review)
	require.Contains(t, string(review.body), `"groups":["system:authenticated"]`)
	require.Contains(t, string(review.body), `"extra":{"authentication.kcp.io/cluster-name":["`+evil+`"],"authentication.kcp.io/scopes":["cluster:`+evil+`"]}`)

	// Servers must not call these addresses. Loopback is allowed for the issuer of this test.
	calls := w.hook.calls.Load()
	port := w.hook.URL[strings.LastIndex(w.hook.URL, ":"):]
	for _, host := range []string{"0.0.0.0" + port, "[::]" + port, "[::ffff:0:0]" + port, "10.0.0.1", "169.254.169.254", "192.168.0.1", "[fd00::1]", "[fe80::1]", "[64:ff9b::a00:1]" + port} {
		url := "https://" + host
		patch := w.mallory(t, http.MethodPatch, inLab+tenancyGroup+"workspaceauthenticationconfigurations/evil", `{"spec":{"jwt":[`+entry(url, "")+`]}}`)
		require.Equal(t, http.StatusOK, patch.code, "%s", patch)
		body := `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"` + sign(map[string]any{"iss": url, "aud": "x", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix()}) + `"}}`
		require.Eventually(t, func() bool {
			got := w.mallory(t, http.MethodPost, "/clusters/"+evil+"/apis/authentication.k8s.io/v1/tokenreviews", body)
			require.NotContains(t, string(got.body), `"authenticated":true`)
			return strings.Contains(string(got.body), "--workspace-issuer-allowed-cidrs does not allow")
		}, testTimeout, 20*time.Millisecond, "%s was not rejected", host)
	}
	require.Equal(t, calls, w.hook.calls.Load(), "a non-public address was called")
}
