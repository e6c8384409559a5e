package integration

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/harness"
)

const (
	linkCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"links.mounts.example.org"},"spec":{"group":"mounts.example.org","scope":"%s","names":{"plural":"links","singular":"link","kind":"Link","listKind":"LinkList"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	links   = "/apis/mounts.example.org/v1/links"
	mounted = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
)

// link makes an object that can be mounted, which leads to a URL.
func (k apiKinds) link(path, name, url string) {
	k.t.Helper()
	k.create(path, `{"apiVersion":"mounts.example.org/v1","kind":"Link","metadata":{"name":%q,"annotations":{"experimental.tenancy.kcp.io/is-mount":"true"}}}`, name)
	k.lead(path, name, "Ready", url)
}

// lead sets where an object leads.
func (k apiKinds) lead(path, name, phase, url string) {
	k.t.Helper()
	k.ask(http.StatusOK, http.MethodPatch, path+"/"+name+"/status", fmt.Sprintf(`{"status":{"phase":%q,"URL":%q}}`, phase, url))
}

// mount creates a Workspace that mounts a Link.
func (k apiKinds) mount(name, link, more string) (int, string) {
	k.t.Helper()
	return k.status(http.MethodPost, mounted, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"mount":{"ref":{"apiVersion":"mounts.example.org/v1","kind":"Link","name":%q%s}}}}`, name, link, more))
}

// mountIs waits until a mount has a phase, and its condition a status and reason.
func (k apiKinds) mountIs(name, phase, ready string) *unstructured.Unstructured {
	k.t.Helper()
	var ws *unstructured.Unstructured
	defer func() {
		if k.t.Failed() {
			k.t.Logf("%s: %v", name, ws)
		}
	}()
	k.eventually(name+" is "+phase+" "+ready, func() bool {
		ws = k.get(mounted + "/" + name)
		return field(ws, "status", "phase") == phase && condition(ws, "WorkspaceMountReady") == ready && ws.GetLabels()["tenancy.kcp.io/phase"] == phase
	})
	return ws
}

// through waits until the front-proxy answers a path with a status, and returns what it says.
func (k apiKinds) proxied(path string, want int) string {
	k.t.Helper()
	var says string
	k.eventually(fmt.Sprintf("%s is %d", path, want), func() bool {
		code, answer := do(k.t, k.Proxy(), call{path: path})
		says = string(answer)
		return code == want
	})
	return says
}

// TestMounts: Workspaces lead where the objects say that they mount.
func TestMounts(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"path": r.RequestURI, "header": r.Header})
	}))
	t.Cleanup(server.Close)
	ca := writeFile(t, t.TempDir(), "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	e := start(t, harness.Options{Mode: harness.Processes, Shards: 2, ExtraArgs: map[string][]string{
		"front-proxy": {"--mount-allowed-cidrs=127.0.0.0/8", "--mount-ca-file=" + ca},
	}})
	target := newAPIKindsOn(e, "mount-target", 1)
	target.create("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"found"}}`)
	k := newAPIKinds(e, "mounting")
	at := "/clusters/root:mounting:m/api/v1/namespaces/default/configmaps/found"

	t.Run("admission", func(t *testing.T) { testMountAdmission(t, k.in(t)) })

	// Of a kind that is not served yet, to a workspace of another shard.
	code, says := k.mount("m", "l", "")
	require.Equal(t, http.StatusCreated, code, says)
	require.Nil(t, field(k.mountIs("m", "Unavailable", "False MountObjectNotFound"), "spec", "type"))
	require.Contains(t, k.proxied(at, http.StatusServiceUnavailable), "mount that leads nowhere now")
	k.create(crds, linkCRD, "Cluster")
	k.eventually("links are served", func() bool {
		code, _ := k.status(http.MethodGet, links, "")
		return code == http.StatusOK
	})
	url := k.Proxy().Host + "/clusters/root:mount-target"
	k.link(links, "l", url)
	ws := k.mountIs("m", "Ready", "True <nil>")
	require.Equal(t, url, field(ws, "spec", "URL"))
	require.Empty(t, ws.GetFinalizers())
	require.Contains(t, k.proxied(at, http.StatusOK), `"name":"found"`)
	k.proxied("/clusters/root:mounting:m:below/api", http.StatusForbidden)

	k.eventually("the shard says where it leads", func() bool {
		code, answer := do(t, k.config, call{path: "/clusters/" + k.cluster + ":m/api"})
		return code == http.StatusServiceUnavailable && strings.Contains(string(answer), "is a mount of "+url)
	})

	// Each change of the object acts.
	for reason, change := range map[string]func(){
		"MountObjectNotReady": func() { k.lead(links, "l", "Connecting", url) },
		"MountObjectNotFound": func() { k.ask(http.StatusOK, http.MethodDelete, links+"/l", "") },
	} {
		change()
		ws = k.mountIs("m", "Unavailable", "False "+reason)
		require.Equal(t, url, field(ws, "spec", "URL"))
		k.proxied(at, http.StatusServiceUnavailable)
		if code, _ := k.status(http.MethodGet, links+"/l", ""); code == http.StatusNotFound {
			k.link(links, "l", url)
		} else {
			k.lead(links, "l", "Ready", url)
		}
		k.mountIs("m", "Ready", "True <nil>")
		k.proxied(at, http.StatusOK)
	}
	k.ask(http.StatusOK, http.MethodPatch, links+"/l", `{"metadata":{"annotations":{"experimental.tenancy.kcp.io/is-mount":null}}}`)
	k.mountIs("m", "Unavailable", "False MountObjectNotReady")
	k.ask(http.StatusOK, http.MethodPatch, links+"/l", `{"metadata":{"annotations":{"experimental.tenancy.kcp.io/is-mount":"true"}}}`)
	k.lead(links, "l", "Ready", "http://example.com")
	k.mountIs("m", "Unavailable", "False MountObjectNotReady")

	// Outside of the installation, after a crash.
	k.lead(links, "l", "Ready", server.URL+"/base")
	k.mountIs("m", "Ready", "True <nil>")
	e.Component("root").Kill()
	e.Component("root").Start()
	e.Component("root").WaitReady()
	k.eventually("the mounted server answers", func() bool {
		code, answer := do(t, k.Proxy(), call{path: at + "?x=y", header: http.Header{"X-Remote-User": {"root"}, "Cookie": {"a=b"}}})
		says = string(answer)
		return code == http.StatusOK && strings.Contains(says, `"path":"/base/api/v1/namespaces/default/configmaps/found?x=y"`)
	})
	for _, word := range []string{"Authorization", "Remote", "Cookie", "Forwarded", "kcp-admin"} {
		require.NotContains(t, says, word)
	}
	k.lead(links, "l", "Ready", url)
	k.eventually("the workspace answers again", func() bool { return strings.Contains(k.proxied(at, http.StatusOK), `"name":"found"`) })

	code, says = k.status(http.MethodDelete, mounted+"/m", "")
	require.Equal(t, http.StatusOK, code, says)
	k.gone(mounted, "m")
	k.proxied(at, http.StatusForbidden)
}

// testMountAdmission: what has a mount has no type, and stays a mount.
func testMountAdmission(t *testing.T, k apiKinds) {
	typed := func(who apiKinds, spec string) (int, string) {
		return who.status(http.MethodPost, mounted, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"typed"},"spec":{"mount":{"ref":{"apiVersion":"v1","kind":"ConfigMap","name":"x","namespace":"default"}}`+spec+`}}`)
	}
	admin := k
	admin.config = k.Proxy() // of system:kcp:admin
	code, says := typed(admin, `,"type":{"name":"universal","path":"root"}`)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Contains(t, says, "no spec.type")
	code, says = typed(admin, "")
	require.Equal(t, http.StatusCreated, code, says)
	for _, change := range []string{`{"spec":{"mount":null}}`, `{"spec":{"mount":{"ref":{"name":"y"}}}}`, `{"spec":{"type":{"name":"universal","path":"root"}}}`} {
		code, answer := do(t, admin.config, call{method: http.MethodPatch, path: "/clusters/" + k.cluster + mounted + "/typed", body: change, header: http.Header{"Content-Type": {"application/merge-patch+json"}}})
		require.Contains(t, []int{http.StatusForbidden, http.StatusUnprocessableEntity}, code, string(answer))
	}
	k.ask(http.StatusCreated, http.MethodPost, mounted, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"usual"}}`)
	k.eventually("a usual workspace is Ready", func() bool { return field(k.get(mounted+"/usual"), "status", "phase") == "Ready" })
	refused := k.ask(http.StatusForbidden, http.MethodPatch, mounted+"/usual", `{"spec":{"mount":{"ref":{"apiVersion":"v1","kind":"ConfigMap","name":"x","namespace":"default"}}}}`)
	require.Contains(t, field(refused, "message"), "spec.mount is immutable")

	// Built-in kinds have no status that leads anywhere.
	k.mountIs("typed", "Unavailable", "False MountObjectNotFound")
	k.create(configMaps, `{"metadata":{"name":"x","annotations":{"experimental.tenancy.kcp.io/is-mount":"true"}}}`)
	k.mountIs("typed", "Unavailable", "False MountObjectNotReady")
}
