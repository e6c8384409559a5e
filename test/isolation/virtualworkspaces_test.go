package isolation

import (
	"bufio"
	"context"
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

// atProxy is the target front-proxy, and atRoot the shard root. Both serve virtual workspaces.
const atProxy, atRoot = 0, 1

// claimable returns claims on all claimable resources of a logical cluster, and the paths of their
// lists in every group and version. Events are claimed in one of their two groups.
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
			continue // not exported, or denied by a policy (testMaximalPermissionPolicy)
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

// testVirtualWorkspaces checks that virtual workspaces contain only objects that consumers allow,
// and only for users authorized by the provider. Neither those of others nor own ones give access
// to anything else.
func (w *world) testVirtualWorkspaces(t *testing.T) {
	const (
		victimExport, victimExportByPath = "/services/apiexport/$B$/gems/clusters/", "/services/apiexport/$BPATH$/gems/clusters/"
		own                              = "/services/apiexport/$A$/spy/clusters/"
		secrets                          = "/api/v1/namespaces/vault/secrets"
	)
	for _, path := range []string{
		victimExport + "*/apis/bound.example/v1/gems", victimExport + "*/apis", victimExport + "$A$" + gems, victimExport + "$B$" + secrets + "/treasure",
		victimExportByPath + "*/apis/bound.example/v1/gems", victimExportByPath + "$B$" + gems, victimExportByPath + "*/openapi/v3",
		"/services/apiexport/$A$/../$B$/gems/clusters/*/apis", "/services/apiexport/$A$%2f..%2f$B$/gems/clusters/*/apis",
		"/services/initializingworkspaces/$B$:gems/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters", "/services/initializingworkspaces/root:universal/clusters/$B$" + secrets,
		"/services/terminatingworkspaces/root:universal/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters", "/services/terminatingworkspaces/$BPATH$:x/clusters/$B$" + secrets,
	} {
		got := w.malloryAt(t, atRoot, http.MethodGet, path, "")
		require.Contains(t, []int{http.StatusForbidden, http.StatusBadRequest, http.StatusNotFound, http.StatusMovedPermanently}, got.code, "%s: %s", path, got)
	}

	w.testUnboundExport(t, own)
	w.testExportsOfOtherAPIs(t, own)
	for _, in := range []string{"$B$", "$BPATH$", "root", "system:admin", "$A$"} {
		for method, path := range map[string]string{
			http.MethodGet: secrets, http.MethodPost: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", http.MethodDelete: secrets + "/treasure", http.MethodPatch: gems + "/treasure",
		} {
			got := w.malloryAt(t, atRoot, method, own+in+path, "{}")
			require.Equal(t, http.StatusForbidden, got.code, "%s %s%s: %s", method, in, path, got)
		}
	}
	// The front-proxy returns the same response for consumers without a binding and for missing
	// ones.
	for _, path := range []string{"/apis", "/api/v1/secrets", "/version", boundAPI + "apibindings"} {
		unknown := w.malloryAt(t, atProxy, http.MethodGet, own+"nowhere"+path, "")
		require.Equal(t, http.StatusForbidden, unknown.code, "%s: %s", path, unknown)
		for _, in := range []string{"$B$", "$BPATH$", "root", "root:nowhere", "system:admin"} {
			got := w.malloryAt(t, atProxy, http.MethodGet, own+in+path, "")
			require.Equal(t, unknown.code, got.code, "%s%s: %s", in, path, got)
			require.Equal(t, string(unknown.body), string(got.body), "%s%s", in, path)
		}
	}
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apiexports/spy", "").code)

	// The same applies to the virtual workspace of an export that all users may bind.
	const authorizedExport = "/services/apiexport/root/tenancy.kcp.io/clusters/"
	for _, line := range []string{"Accept: */*", "Impersonate-User: system:apiserver", "Impersonate-User: user-2", "Impersonate-User: x\r\nImpersonate-Group: system:masters"} {
		unknown := w.malloryAt(t, atProxy, http.MethodGet, authorizedExport+"nowhere/api/v1/secrets", "", line)
		require.Equal(t, http.StatusForbidden, unknown.code, "%s: %s", line, unknown)
		for _, in := range []string{"$B$", "$BPATH$", "system:admin"} {
			got := w.malloryAt(t, atProxy, http.MethodGet, authorizedExport+in+"/api/v1/secrets", "", line)
			require.Equal(t, string(unknown.body), string(got.body), "%s: %s", in, line)
		}
	}
}

// testUnboundExport checks that the virtual workspace of an export that claims everything is empty
// in all groups and versions if there is no binding.
func (w *world) testUnboundExport(t *testing.T, own string) {
	t.Helper()
	claims, lists := w.claimable(t)
	spy := `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"spy"},"spec":{"permissionClaims":[` + claims + `]}}`
	made := w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", spy)
	require.Equal(t, http.StatusCreated, made.code, "%s", made)
	w.untilResponse(t, atRoot, http.MethodGet, own+"*/api/v1/secrets", "", http.StatusOK, "", "the virtual workspace of mallory's export is not served")
	for _, path := range lists {
		for _, query := range []string{"", "?resourceVersion=0", "?labelSelector="} {
			got := w.malloryAt(t, atRoot, http.MethodGet, own+"*"+path+query, "")
			require.Equal(t, http.StatusOK, got.code, "%s: %s", path, got)
			var list struct{ Items []any }
			require.NoError(t, json.Unmarshal(got.body, &list))
			require.Empty(t, list.Items, "%s: %s", path, got)
		}
	}
	transport := &http.Transport{TLSClientConfig: w.tlsConfig(0)}
	t.Cleanup(transport.CloseIdleConnections)
	t.Run("new objects", func(t *testing.T) { w.testNewObjects(t, transport, own) })
	t.Run("watches", func(t *testing.T) {
		for _, path := range lists {
			t.Run(path, func(t *testing.T) {
				t.Parallel()
				events, end := w.watchUnbound(t, transport, own, path)
				time.AfterFunc(watchTime, end)
				for events.Scan() { // the victims' ConfigMaps change continuously
					require.Contains(t, events.Text(), `"type":"BOOKMARK"`)
				}
			})
		}
	})
}

// watchUnbound opens a watch through the export, and reads the bookmark after its empty list.
func (w *world) watchUnbound(t *testing.T, transport *http.Transport, own, path string) (events *bufio.Scanner, end context.CancelFunc) {
	t.Helper()
	url := "https://" + w.targets[atRoot].host + strings.ReplaceAll(own, "$A$", w.alpha.name) + "*" + path + "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	events = bufio.NewScanner(response.Body)
	require.True(t, events.Scan())
	require.Contains(t, events.Text(), `"type":"BOOKMARK"`)
	return events, end
}

// testNewObjects checks that open watches through the export do not contain new objects of a
// victim.
func (w *world) testNewObjects(t *testing.T, transport *http.Transport, own string) {
	create := func(t *testing.T, name, path, kind, spec string) {
		t.Helper()
		w.must(w.admin, http.MethodPost, w.bravo.name, path, `{"apiVersion":"v1","kind":"`+kind+`","metadata":{"name":"`+name+`"}`+spec+`}`, nil)
		w.must(w.admin, http.MethodDelete, w.bravo.name, path+"/"+name, "", nil)
	}
	for i, path := range []string{"/api/v1/secrets", "/api/v1/events", "/apis/events.k8s.io/v1/events"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("%s-new-%d", w.secret, i)
			events, end := w.watchUnbound(t, transport, own, path)
			create(t, name, "/api/v1/namespaces/default/secrets", "Secret", "")
			create(t, name, "/api/v1/namespaces/default/events", "Event", `,"involvedObject":{"namespace":"default"}`)
			time.AfterFunc(time.Second, end) // an event would arrive earlier
			for events.Scan() {
				require.Contains(t, events.Text(), `"type":"BOOKMARK"`)
			}
		})
	}
}

// testExportsOfOtherAPIs checks that an own export of APIs that others also have does not contain
// their objects.
func (w *world) testExportsOfOtherAPIs(t *testing.T, own string) {
	t.Helper()
	// Events are built in and served in two groups.
	const events = `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"events"},"spec":{"resources":[{"group":"","name":"events","schema":"v1.events.core","storage":{"crd":{}}},{"group":"events.k8s.io","name":"events","schema":"v1.events.events.k8s.io","storage":{"crd":{}}}]}}`
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", events).code)
	for _, path := range []string{"/api/v1/events", "/apis/events.k8s.io/v1/events"} {
		got := w.untilResponse(t, atRoot, http.MethodGet, strings.Replace(own, "spy", "events", 1)+"*"+path, "", http.StatusOK, "", "the export has no identity")
		require.Contains(t, string(got.body), `"items":[]`, path)
	}
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apiexports/events", "").code)
	// An export without an identity has the resources of others.
	const bare = `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"bare"},"spec":{"identity":{"secretRef":{"namespace":"vault","name":"missing"}},"resources":[{"group":"","name":"secrets","schema":"v1.secrets.core","storage":{"crd":{}}},{"group":"bound.example","name":"gems","schema":"v1.gems.bound.example","storage":{"crd":{}}}]}}`
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", bare).code)
	ofBare := strings.Replace(own, "spy", "bare", 1)
	w.untilResponse(t, atRoot, http.MethodGet, ofBare+"*/apis", "", http.StatusOK, "", "the virtual workspace is not served")
	for _, path := range []string{"/api/v1/secrets", "/apis/bound.example/v1/gems"} {
		got := w.malloryAt(t, atRoot, http.MethodGet, ofBare+"*"+path, "")
		require.Equal(t, http.StatusNotFound, got.code, "%s: %s", path, got)
	}
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apiexports/bare", "").code)
}
