package isolation

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// claimable returns claims on everything that a logical cluster has and that can be claimed, and the paths
// of the lists of it in every group and version. Events are claimed by one of their two groups.
func (w *world) claimable(t *testing.T) (claims string, lists []string) {
	t.Helper()
	get := func(path string, into any) {
		got := w.mallory(t, http.MethodGet, "/clusters/$A$"+path, "")
		require.Equal(t, http.StatusOK, got.code, "%s: %s", path, got)
		require.NoError(t, json.Unmarshal(got.body, into))
	}
	identities := map[string]string{"bound.example": "$GEMS$"}
	for _, group := range []string{"tenancy.kcp.io", "topology.kcp.io"} {
		var export struct{ Status struct{ IdentityHash string } }
		w.must(w.masters, http.MethodGet, "root", boundAPI+"apiexports/"+group, "", &export)
		identities[group] = export.Status.IdentityHash
	}
	groups := metav1.APIGroupList{}
	get("/apis", &groups)
	groups.Groups = append(groups.Groups, metav1.APIGroup{Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "v1"}}})
	claimed := map[string]bool{}
	for _, group := range groups.Groups {
		if strings.HasPrefix(group.Name, "cache.") || strings.HasSuffix(group.Name, "example.com") || group.Name == "warden.example" {
			continue // no export has these, or only one whose policy denies them (testMaximal)
		}
		for _, version := range group.Versions {
			path := "/apis/" + version.GroupVersion
			if group.Name == "" {
				path = "/api/" + version.GroupVersion
			}
			var all metav1.APIResourceList
			get(path, &all)
			for i := range all.APIResources {
				r := &all.APIResources[i]
				if !slices.Contains(r.Verbs, "list") {
					continue
				}
				lists = append(lists, path+"/"+r.Name)
				if group.Name != "events.k8s.io" {
					claimed[fmt.Sprintf(`{"group":%q,"resource":%q,"identityHash":%q,"verbs":["*"]}`, group.Name, r.Name, identities[group.Name])] = true
				}
			}
		}
	}
	require.Contains(t, lists, "/apis/events.k8s.io/v1/events")
	return strings.Join(slices.Sorted(maps.Keys(claimed)), ","), lists
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

	w.testClaimsOfNone(t, own)
	w.testOffersOfOthers(t, own)
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

// testClaimsOfNone: an own export asks for everything, and nobody has bound it. Its virtual workspace
// shows nothing, in no group and no version.
func (w *world) testClaimsOfNone(t *testing.T, own string) {
	t.Helper()
	claims, lists := w.claimable(t)
	spy := `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"spy"},"spec":{"permissionClaims":[` + claims + `]}}`
	made := w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", spy)
	require.Equal(t, http.StatusCreated, made.code, "%s", made)
	require.Eventually(t, func() bool {
		return w.view(t, http.MethodGet, own+"*/api/v1/secrets", "").code == http.StatusOK
	}, 30*time.Second, 10*time.Millisecond, "the view of mallory's export opens")
	for _, path := range lists {
		for _, query := range []string{"", "?resourceVersion=0", "?labelSelector="} {
			got := w.view(t, http.MethodGet, own+"*"+path+query, "")
			require.Equal(t, http.StatusOK, got.code, "%s: %s", path, got)
			var list struct{ Items []any }
			require.NoError(t, json.Unmarshal(got.body, &list))
			require.Empty(t, list.Items, "%s: %s", path, got)
		}
	}
	t.Run("new objects", func(t *testing.T) { w.testNewObjects(t, own) })
	t.Run("watches", func(t *testing.T) { // each is listened to for a while
		for _, path := range lists {
			t.Run(path, func(t *testing.T) {
				t.Parallel()
				got := w.view(t, http.MethodGet, own+"*"+path+"?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "")
				require.Equal(t, http.StatusOK, got.code, got)
				require.Contains(t, string(got.body), `"type":"BOOKMARK"`, got)
				require.NotContains(t, string(got.body), `"type":"ADDED"`, got)
				require.NotContains(t, string(got.body), `"type":"MODIFIED"`, got) // the victims' config maps are changed all the time
			})
		}
	})
}

// testNewObjects: watches through the export show nothing of what a victim creates while they are open.
func (w *world) testNewObjects(t *testing.T, own string) {
	create := func(t *testing.T, name, path, kind, spec string) {
		t.Helper()
		w.must(w.admin, http.MethodPost, w.bravo.name, path, `{"apiVersion":"v1","kind":"`+kind+`","metadata":{"name":"`+name+`"}`+spec+`}`, nil)
		w.must(w.admin, http.MethodDelete, w.bravo.name, path+"/"+name, "", nil)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*w.whos[0].cert}}} //nolint:gosec // attackers do not mind
	t.Cleanup(transport.CloseIdleConnections)
	for i, path := range []string{"/api/v1/secrets", "/api/v1/events", "/apis/events.k8s.io/v1/events"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("%s-new-%d", w.secret, i)
			// The server ends the watch.
			url := "https://" + w.targets[atRoot].host + strings.ReplaceAll(own, "$A$", w.alpha.name) + "*" + path + "?watch=true&timeoutSeconds=3&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
			require.NoError(t, err)
			response, err := transport.RoundTrip(request)
			require.NoError(t, err)
			defer func() { _ = response.Body.Close() }()
			require.Equal(t, http.StatusOK, response.StatusCode)
			events := bufio.NewScanner(response.Body)
			require.True(t, events.Scan())
			require.Contains(t, events.Text(), `"type":"BOOKMARK"`)
			create(t, name, "/api/v1/namespaces/default/secrets", "Secret", "")
			create(t, name, "/api/v1/namespaces/default/events", "Event", `,"involvedObject":{"namespace":"default"}`)
			for events.Scan() {
				require.Contains(t, events.Text(), `"type":"BOOKMARK"`)
			}
		})
	}
}

// testOffersOfOthers: an own export that offers what all have shows nothing of it.
func (w *world) testOffersOfOthers(t *testing.T, own string) {
	t.Helper()
	// Events are built in, and shown by two groups.
	const events = `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"events"},"spec":{"resources":[{"group":"","name":"events","schema":"v1.events.core","storage":{"crd":{}}},{"group":"events.k8s.io","name":"events","schema":"v1.events.events.k8s.io","storage":{"crd":{}}}]}}`
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", events).code)
	for _, path := range []string{"/api/v1/events", "/apis/events.k8s.io/v1/events"} {
		var got answer
		require.Eventually(t, func() bool {
			got = w.view(t, http.MethodGet, strings.Replace(own, "spy", "events", 1)+"*"+path, "")
			return got.code == http.StatusOK // it has an identity
		}, 30*time.Second, 10*time.Millisecond, "%s", &got)
		require.Contains(t, string(got.body), `"items":[]`, path)
	}
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apiexports/events", "").code)
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
}
