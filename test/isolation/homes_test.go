package isolation

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// homes has everybody try the home workspace of another user, whose name and path follow
// from the user's, and ask for their own.
func (w *world) homes(t *testing.T) {
	const own = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces/~"
	owner := rest.AnonymousClientConfig(w.admin)
	owner.BearerToken = "user-2-token"
	var home struct{ Spec struct{ Cluster, URL string } }
	w.must(owner, http.MethodGet, "root", "/apis/tenancy.kcp.io/v1alpha1/workspaces/~", "", &home)
	w.must(owner, http.MethodPost, "user:user-2", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"`+w.secret+`-home"}}`, nil)
	// The other has none, and a name as long.
	w.vars["HPATH"], w.twins["HPATH"] = "user:user-2", "user:user-9"
	w.vars["H"], w.twins["H"] = home.Spec.Cluster, "2zzzzzzzzzzzz"

	var inputs []input
	for target := range w.targets {
		for who, p := range w.whos {
			if !p.attacks(w.targets[target].name) {
				continue
			}
			for _, path := range []string{
				"/clusters/$HPATH$/api/v1/configmaps", "/clusters/$H$/api/v1/configmaps", "/clusters/$HPATH$:none/api", "/clusters/system:homes" + workspacesPath, "/clusters/system:homes" + workspacesPath + "/$H$",
			} {
				inputs = append(inputs, input{who: who, target: target, raw: "GET " + path + " HTTP/1.1\r\nConnection: close\r\n\r\n"})
			}
		}
	}
	w.send(t, inputs)

	for who, p := range w.whos {
		if !p.attacks(frontProxy) {
			continue
		}
		got := w.perform(t.Context(), input{who: who, raw: "GET " + own + " HTTP/1.1\r\nConnection: close\r\n\r\n"}, false)
		require.NoError(t, got.err)
		require.Contains(t, []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}, got.code, "%s: %s", p.name, got)
		require.NotContains(t, string(got.body), home.Spec.Cluster, "%s: %s", p.name, got)
		if slices.Contains([]string{"service account", "legacy token", "name of a service account", "global name of a service account"}, p.name) {
			require.NotEqual(t, http.StatusOK, got.code, "%s: %s", p.name, got)
		}
	}
}

const workspacesPath = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
