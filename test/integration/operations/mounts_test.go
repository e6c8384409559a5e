package operations

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/integration/kit"
)

const (
	linkCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"links.mounts.example.org"},"spec":{"group":"mounts.example.org","scope":"%s","names":{"plural":"links","singular":"link","kind":"Link","listKind":"LinkList"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	links   = "/apis/mounts.example.org/v1/links"
	mounted = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
)

// linkMount creates a Link to a URL.
func linkMount(k kit.WorkspaceClient, path, name, url string) {
	k.T.Helper()
	k.Create(path, `{"apiVersion":"mounts.example.org/v1","kind":"Link","metadata":{"name":%q}}`, name)
	setMount(k, path, name, "Ready", url)
}

// setMount sets the phase and URL of a Link.
func setMount(k kit.WorkspaceClient, path, name, phase, url string) {
	k.T.Helper()
	k.Patch(path+"/"+name+"/status", fmt.Sprintf(`{"status":{"phase":%q,"URL":%q}}`, phase, url))
}

// mountWorkspace creates a Workspace that mounts a Link.
func mountWorkspace(k kit.WorkspaceClient, name, link, more string) (int, string) {
	k.T.Helper()
	return k.TryDo(http.MethodPost, mounted, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"mount":{"ref":{"apiVersion":"mounts.example.org/v1","kind":"Link","name":%q%s}}}}`, name, link, more))
}

// mountIs waits until a Workspace has a phase, and its condition WorkspaceMountReady a status and reason.
func mountIs(k kit.WorkspaceClient, name, phase, ready string) *unstructured.Unstructured {
	k.T.Helper()
	var ws *unstructured.Unstructured
	defer func() {
		if k.T.Failed() {
			k.T.Logf("%s: %v", name, ws)
		}
	}()
	k.Eventually(name+" is "+phase+" "+ready, func() bool {
		ws = k.Get(mounted + "/" + name)
		return kit.Field(ws, "status", "phase") == phase && kit.Condition(ws, "WorkspaceMountReady") == ready && ws.GetLabels()["tenancy.kcp.io/phase"] == phase
	})
	return ws
}

// proxied waits until the front-proxy returns a status code for a path, and returns the body.
func proxied(k kit.WorkspaceClient, path string, want int) string {
	k.T.Helper()
	var message string
	k.Eventually(fmt.Sprintf("%s is %d", path, want), func() bool {
		code, response := kit.Do(k.T, k.Proxy(), kit.Request{Path: path})
		message = string(response)
		return code == want
	})
	return message
}

// newMountedServer starts a server outside of the installation that returns path and header of requests.
func newMountedServer() *httptest.Server {
	return httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"path": r.RequestURI, "header": r.Header})
	}))
}

// TestMounts checks that the front-proxy forwards requests for mounts to the URLs of the mounted objects.
func TestMounts(t *testing.T) {
	t.Parallel()
	e := sharedWithEverything(t)
	server := everything.mounts
	target := kit.NewWorkspaceClientOn(e, "mount-target", 1)
	target.Create("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"found"}}`)
	k := kit.NewWorkspaceClient(e, "mounting")
	at := "/clusters/root:mounting:m/api/v1/namespaces/default/configmaps/found"

	t.Run("admission", func(t *testing.T) { testMountAdmission(t, k.ForTest(t)) })

	// A mount of a kind that is not served yet, with the URL of a workspace on another shard.
	code, message := mountWorkspace(k, "m", "l", "")
	require.Equal(t, http.StatusCreated, code, message)
	require.Nil(t, kit.Field(mountIs(k, "m", "Unavailable", "False MountObjectNotFound"), "spec", "type"))
	require.Contains(t, proxied(k, at, http.StatusServiceUnavailable), "see its conditions")
	k.Create(kit.DefinitionsPath, linkCRD, "Cluster")
	k.UntilCode(http.StatusOK, http.MethodGet, links, "")
	url := k.Proxy().Host + "/clusters/root:mount-target"
	linkMount(k, links, "l", url)
	ws := mountIs(k, "m", "Ready", "True <nil>")
	require.Equal(t, url, kit.Field(ws, "spec", "URL"))
	require.Empty(t, ws.GetFinalizers())
	require.Contains(t, proxied(k, at, http.StatusOK), `"name":"found"`)
	proxied(k, "/clusters/root:mounting:m:below/api", http.StatusForbidden)

	k.Eventually("the shard returns the URL", func() bool {
		code, response := kit.Do(t, k.Config, kit.Request{Path: "/clusters/" + k.ClusterName + ":m/api"})
		return code == http.StatusServiceUnavailable && strings.Contains(string(response), "is a mount of "+url)
	})

	// Changes of the object are applied.
	for reason, change := range map[string]func(){
		"MountObjectNotReady": func() { setMount(k, links, "l", "Connecting", url) },
		"MountObjectNotFound": func() { k.Do(http.StatusOK, http.MethodDelete, links+"/l", "") },
	} {
		change()
		ws = mountIs(k, "m", "Unavailable", "False "+reason)
		require.Equal(t, url, kit.Field(ws, "spec", "URL"))
		proxied(k, at, http.StatusServiceUnavailable)
		if code, _ := k.TryDo(http.MethodGet, links+"/l", ""); code == http.StatusNotFound {
			linkMount(k, links, "l", url)
		} else {
			setMount(k, links, "l", "Ready", url)
		}
		mountIs(k, "m", "Ready", "True <nil>")
		proxied(k, at, http.StatusOK)
	}
	setMount(k, links, "l", "Ready", "http://example.com")
	mountIs(k, "m", "Unavailable", "False MountObjectNotReady")

	// A server outside of the installation.
	setMount(k, links, "l", "Ready", server.URL+"/base")
	mountIs(k, "m", "Ready", "True <nil>")
	k.Eventually("the mounted server receives the request", func() bool {
		code, response := kit.Do(t, k.Proxy(), kit.Request{Path: at + "?x=y", Header: http.Header{"X-Remote-User": {"root"}, "Cookie": {"a=b"}}})
		message = string(response)
		return code == http.StatusOK && strings.Contains(message, `"path":"/base/api/v1/namespaces/default/configmaps/found?x=y"`)
	})
	for _, word := range []string{"Authorization", "Remote", "Cookie", "Forwarded", "kcp-admin"} {
		require.NotContains(t, message, word)
	}
	setMount(k, links, "l", "Ready", url)
	k.Eventually("requests reach the workspace again", func() bool { return strings.Contains(proxied(k, at, http.StatusOK), `"name":"found"`) })

	k.RequireCode(http.StatusOK, http.MethodDelete, mounted+"/m", "")
	k.UntilDeleted(mounted + "/m")
	proxied(k, at, http.StatusForbidden)
}

// testMountAdmission checks that a Workspace with a mount must not have a type, and that spec.mount is immutable.
func testMountAdmission(t *testing.T, k kit.WorkspaceClient) {
	typed := func(user kit.WorkspaceClient, spec string) (int, string) {
		return user.TryDo(http.MethodPost, mounted, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"typed"},"spec":{"mount":{"ref":{"apiVersion":"v1","kind":"ConfigMap","name":"x","namespace":"default"}}`+spec+`}}`)
	}
	admin := k
	admin.Config = k.Proxy() // a member of system:kcp:admin
	code, message := typed(admin, `,"type":{"name":"universal","path":"root"}`)
	require.Equal(t, http.StatusForbidden, code, message)
	require.Contains(t, message, "no spec.type")
	code, message = typed(admin, "")
	require.Equal(t, http.StatusCreated, code, message)
	for _, change := range []string{`{"spec":{"mount":null}}`, `{"spec":{"mount":{"ref":{"name":"y"}}}}`, `{"spec":{"type":{"name":"universal","path":"root"}}}`} {
		code, response := kit.Do(t, admin.Config, kit.Request{Method: http.MethodPatch, Path: "/clusters/" + k.ClusterName + mounted + "/typed", Body: change, Header: http.Header{"Content-Type": {"application/merge-patch+json"}}})
		require.Contains(t, []int{http.StatusForbidden, http.StatusUnprocessableEntity}, code, string(response))
	}
	k.Do(http.StatusCreated, http.MethodPost, mounted, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"usual"}}`)
	k.Eventually("the workspace without a mount is Ready", func() bool { return kit.Field(k.Get(mounted+"/usual"), "status", "phase") == "Ready" })
	refused := k.Do(http.StatusForbidden, http.MethodPatch, mounted+"/usual", `{"spec":{"mount":{"ref":{"apiVersion":"v1","kind":"ConfigMap","name":"x","namespace":"default"}}}}`)
	require.Contains(t, kit.Field(refused, "message"), "spec.mount is immutable")

	// Built-in kinds have no status with a URL.
	mountIs(k, "typed", "Unavailable", "False MountObjectNotFound")
	k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"x"}}`)
	mountIs(k, "typed", "Unavailable", "False MountObjectNotReady")
}
