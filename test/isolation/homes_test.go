package isolation

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// testHomes sends requests of all attackers to the home workspace of another user, because its name
// and path can be derived from the user name, and requests for their own.
func (w *world) testHomes(t *testing.T) {
	const own = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces/~"
	owner := rest.AnonymousClientConfig(w.admin)
	owner.BearerToken = "user-2-token"
	var home struct{ Spec struct{ Cluster, URL string } }
	w.must(owner, http.MethodGet, "root", "/apis/tenancy.kcp.io/v1alpha1/workspaces/~", "", &home)
	w.must(owner, http.MethodPost, "user:user-2", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"`+w.secret+`-home"}}`, nil)
	// The missing user has no home workspace and a name of equal length.
	w.vars["HPATH"], w.twins["HPATH"] = "user:user-2", "user:user-9"
	w.vars["H"], w.twins["H"] = home.Spec.Cluster, "2zzzzzzzzzzzz"

	var inputs []input
	for target := range w.targets {
		for attacker, p := range w.attackers {
			if !p.attacks(w.targets[target].name) {
				continue
			}
			for _, path := range []string{
				"/clusters/$HPATH$/api/v1/configmaps", "/clusters/$H$/api/v1/configmaps", "/clusters/$HPATH$:none/api", "/clusters/system:homes" + workspacesPath, "/clusters/system:homes" + workspacesPath + "/$H$",
			} {
				inputs = append(inputs, input{attacker: attacker, target: target, raw: get(path)})
			}
		}
	}
	w.send(t, inputs)

	for attacker, p := range w.attackers {
		if !p.attacks(frontProxy) {
			continue
		}
		got := w.perform(t.Context(), input{attacker: attacker, raw: get(own)}, false)
		require.NoError(t, got.err)
		require.Contains(t, []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}, got.code, "%s: %s", p.name, got)
		require.NotContains(t, string(got.body), home.Spec.Cluster, "%s: %s", p.name, got)
		if slices.Contains([]string{"service account", "legacy token", "name of a service account", "global name of a service account"}, p.name) {
			require.NotEqual(t, http.StatusOK, got.code, "%s: %s", p.name, got)
		}
	}
}

const workspacesPath = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
