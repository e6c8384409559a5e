package isolation

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// atProxy is the front-proxy, and atRoot the shard root: both have views.
const atProxy, atRoot = 0, 1

// view is what mallory asks the shard root.
func (w *world) view(t *testing.T, method, path, body string, lines ...string) answer {
	t.Helper()
	return w.viewAt(t, atRoot, method, path, body, lines...)
}

func (w *world) viewAt(t *testing.T, target int, method, path, body string, lines ...string) answer {
	t.Helper()
	head := append([]string{method + " " + path + " HTTP/1.1", "Connection: close", "Content-Type: application/json"}, lines...)
	raw := strings.Join(head, "\r\n") + "\r\n\r\n" + body
	got, found := w.attack(t.Context(), input{wire: true, target: target, raw: raw})
	if found != nil {
		t.Fatal(w.describe(*found))
	}
	return got
}

// testViews holds that views show what consumers let be seen, and to those whom the
// provider lets in: neither the views of others, nor one's own, lead anywhere else.
func (w *world) testViews(t *testing.T) {
	const (
		theirs, theirsByPath = "/services/apiexport/$B$/gems/clusters/", "/services/apiexport/$BPATH$/gems/clusters/"
		own                  = "/services/apiexport/$A$/spy/clusters/"
		secrets              = "/api/v1/namespaces/vault/secrets"
	)
	for _, path := range []string{
		theirs + "*/apis/bound.example/v1/gems", theirs + "*/apis", theirs + "$A$" + gems, theirs + "$B$" + secrets + "/treasure",
		theirsByPath + "*/apis/bound.example/v1/gems", theirsByPath + "$B$" + gems, theirsByPath + "*/openapi/v3",
		"/services/apiexport/$A$/../$B$/gems/clusters/*/apis", "/services/apiexport/$A$%2f..%2f$B$/gems/clusters/*/apis",
		"/services/initializingworkspaces/$B$:gems/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters", "/services/initializingworkspaces/root:universal/clusters/$B$" + secrets,
		"/services/terminatingworkspaces/root:universal/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters", "/services/terminatingworkspaces/$BPATH$:x/clusters/$B$" + secrets,
	} {
		got := w.view(t, http.MethodGet, path, "")
		require.Contains(t, []int{http.StatusForbidden, http.StatusBadRequest, http.StatusNotFound, http.StatusMovedPermanently}, got.code, "%s: %s", path, got)
	}

	// An own export asks for everything, and nobody has bound it.
	const spy = `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"spy"},"spec":{"permissionClaims":[
		{"group":"","resource":"secrets","verbs":["*"]},{"group":"core.kcp.io","resource":"logicalclusters","verbs":["*"]},{"group":"apis.kcp.io","resource":"apibindings","verbs":["*"]},
		{"group":"rbac.authorization.k8s.io","resource":"clusterrolebindings","verbs":["*"]},{"group":"bound.example","resource":"gems","identityHash":"$GEMS$","verbs":["*"]}]}}`
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", strings.ReplaceAll(spy, "\n", "")).code)
	require.Eventually(t, func() bool {
		return w.view(t, http.MethodGet, own+"*/api/v1/secrets", "").code == http.StatusOK
	}, 30*time.Second, 10*time.Millisecond, "the view of mallory's export opens")
	for _, path := range []string{
		"/api/v1/secrets", "/api/v1/secrets?resourceVersion=0", "/api/v1/secrets?labelSelector=", "/apis/core.kcp.io/v1alpha1/logicalclusters", boundAPI + "apibindings", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	} {
		got := w.view(t, http.MethodGet, own+"*"+path, "")
		require.Equal(t, http.StatusOK, got.code, "%s: %s", path, got)
		var list struct{ Items []any }
		require.NoError(t, json.Unmarshal(got.body, &list))
		require.Empty(t, list.Items, "%s: %s", path, got)
	}
	// One without an identity offers what others have.
	const bare = `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"bare"},"spec":{"identity":{"secretRef":{"namespace":"vault","name":"missing"}},"resources":[{"group":"","name":"secrets","schema":"v1.secrets.core","storage":{"crd":{}}},{"group":"bound.example","name":"gems","schema":"v1.gems.bound.example","storage":{"crd":{}}}]}}`
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", bare).code)
	ofBare := strings.Replace(own, "spy", "bare", 1)
	require.Eventually(t, func() bool {
		return w.view(t, http.MethodGet, ofBare+"*/apis", "").code == http.StatusOK
	}, 30*time.Second, 10*time.Millisecond, "the view opens")
	for _, path := range []string{"/api/v1/secrets", "/apis/bound.example/v1/gems"} {
		got := w.view(t, http.MethodGet, ofBare+"*"+path, "")
		require.Equal(t, http.StatusNotFound, got.code, "%s: %s", path, got)
	}
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apiexports/bare", "").code)
	for _, in := range []string{"$B$", "$BPATH$", "root", "system:admin", "$A$"} {
		for method, path := range map[string]string{
			http.MethodGet: secrets, http.MethodPost: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", http.MethodDelete: secrets + "/treasure", http.MethodPatch: gems + "/treasure",
		} {
			got := w.view(t, method, own+in+path, "{}")
			require.Equal(t, http.StatusForbidden, got.code, "%s %s%s: %s", method, in, path, got)
		}
	}
	// The front-proxy tells as much of those who have not bound it as of who does not exist.
	for _, path := range []string{"/apis", "/api/v1/secrets", "/version", boundAPI + "apibindings"} {
		unknown := w.viewAt(t, atProxy, http.MethodGet, own+"nowhere"+path, "")
		require.Equal(t, http.StatusForbidden, unknown.code, "%s: %s", path, unknown)
		for _, in := range []string{"$B$", "$BPATH$", "root", "root:nowhere", "system:admin"} {
			got := w.viewAt(t, atProxy, http.MethodGet, own+in+path, "")
			require.Equal(t, unknown.code, got.code, "%s%s: %s", in, path, got)
			require.Equal(t, string(unknown.body), string(got.body), "%s%s", in, path)
		}
	}
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apiexports/spy", "").code)

	// Nor does it tell those more who may enter where an export is, and nothing of its view.
	const entered = "/services/apiexport/root/tenancy.kcp.io/clusters/"
	for _, line := range []string{"Accept: */*", "Impersonate-User: system:apiserver", "Impersonate-User: user-2", "Impersonate-User: x\r\nImpersonate-Group: system:masters"} {
		unknown := w.viewAt(t, atProxy, http.MethodGet, entered+"nowhere/api/v1/secrets", "", line)
		require.Equal(t, http.StatusForbidden, unknown.code, "%s: %s", line, unknown)
		for _, in := range []string{"$B$", "$BPATH$", "system:admin"} {
			got := w.viewAt(t, atProxy, http.MethodGet, entered+in+"/api/v1/secrets", "", line)
			require.Equal(t, string(unknown.body), string(got.body), "%s: %s", in, line)
		}
	}
}
