package isolation

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	doors      = "/clusters/$A$/apis/doors.example/v1/doors"
	workspaces = "/clusters/$A$/apis/tenancy.kcp.io/v1alpha1/workspaces"
)

// testMounts holds that a tenant who mounts whatever URL gets nowhere by that where it could not
// get by itself: to no address of the operator's, to no server of the installation as somebody
// else, and to no workspace of others.
func (w *world) testMounts(t *testing.T) {
	const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"doors.doors.example"},"spec":{"group":"doors.example","scope":"Cluster","names":{"plural":"doors","singular":"door","kind":"Door","listKind":"DoorList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).code)
	require.Eventually(t, func() bool { return w.mallory(t, http.MethodGet, doors, "").code == http.StatusOK }, testTimeout, 10*time.Millisecond, "doors are served")
	proxy, shard, cache := w.targets[atProxy].host, w.targets[atRoot].host, w.Component(cacheServer).URL
	ports := w.hook.URL[strings.LastIndex(w.hook.URL, ":"):]
	calls := w.hook.calls.Load()
	n := 0
	door := func(url string) string {
		n++
		name := fmt.Sprintf("door-%02d", n)
		got := w.mallory(t, http.MethodPost, doors, `{"apiVersion":"doors.example/v1","kind":"Door","metadata":{"name":"`+name+`"},"status":{"phase":"Ready","URL":"`+url+`"}}`)
		require.Equal(t, http.StatusCreated, got.code, "%s", got)
		got = w.mallory(t, http.MethodPost, workspaces, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"`+name+`"},"spec":{"mount":{"ref":{"apiVersion":"doors.example/v1","kind":"Door","name":"`+name+`"}}}}`)
		require.Equal(t, http.StatusCreated, got.code, "%s", got)
		require.Eventually(t, func() bool {
			got = w.mallory(t, http.MethodGet, workspaces+"/"+name, "")
			return strings.Contains(string(got.body), `"type":"WorkspaceMountReady"`)
		}, testTimeout, 10*time.Millisecond, "%s is looked at", url)
		return "/clusters/" + w.alpha.path + ":" + name
	}
	// known waits until the front-proxy knows each mount made so far. It learns of
	// them in the order of their changes, so it knows them all when it leads to one
	// that was made last and is mallory's own.
	known := func() string {
		path := door("https://" + proxy + "/clusters/" + w.alpha.path)
		var got answer
		require.Eventually(t, func() bool {
			got = w.mallory(t, http.MethodGet, path+"/api/v1/namespaces", "")
			return got.code == http.StatusOK
		}, testTimeout, 10*time.Millisecond, "a mount of mallory's own workspace is led to: %s", &got)
		return path
	}
	secret := "/api/v1/namespaces/vault/secrets/treasure"

	// Addresses that tenants may not reach, however they are written, and servers
	// of the installation, at anything but a workspace.
	addresses := []string{
		cache + "/services/cache/shards/*/clusters/*", "https://" + proxy + "/metrics", "https://" + proxy, "https://" + shard + "/clusters/*", "https://" + shard + "/clusters/system:admin",
		"https://" + shard + "/services/apiexport/root/tenancy.kcp.io/clusters/*", "https://" + shard + "/clusters/" + w.bravo.name + "/api", "https://" + proxy + "/clusters/root%3Abravo%2Fapi",
	}
	for _, host := range []string{"127.0.0.1" + ports, "localhost" + ports, "[::1]" + ports, "[::ffff:7f00:1]" + ports, "0.0.0.0" + ports, "0" + ports, "2130706433" + ports, "10.0.0.1", "169.254.169.254", "[fd00::1]", "[64:ff9b::7f00:1]" + ports} {
		addresses = append(addresses, "https://"+host)
	}
	refused := map[string]string{}
	for _, url := range addresses {
		refused[url] = door(url)
	}
	known()
	for url, path := range refused {
		for _, below := range []string{secret, "/api"} {
			got := w.mallory(t, http.MethodGet, path+below, "")
			require.Equal(t, http.StatusServiceUnavailable, got.code, "%s: %s", url, got)
		}
	}
	// Workspaces of others: what is there, and what is not, is the same.
	nowhere := door("https://" + proxy + "/clusters/" + w.absent.path)
	known()
	absent := w.mallory(t, http.MethodGet, nowhere+secret, "")
	require.Equal(t, http.StatusForbidden, absent.code, "%s", absent)
	others := map[string]string{}
	for _, at := range []string{proxy, shard} {
		for _, of := range []string{w.bravo.path, w.bravo.name, w.blind.path} {
			url := "https://" + at + "/clusters/" + of
			others[url] = door(url)
		}
	}
	known()
	for url, path := range others {
		for _, lines := range [][]string{nil, {"X-Remote-User: kcp-admin", "X-Remote-Group: system:masters"}, {"Impersonate-User: kcp-admin", "Impersonate-Group: system:kcp:admin"}} {
			got := w.mallory(t, http.MethodGet, path+secret, "", lines...)
			require.Equal(t, http.StatusForbidden, got.code, "%s: %s", url, got)
			require.Equal(t, string(absent.body), string(got.body))
		}
	}
	require.Equal(t, calls, w.hook.calls.Load(), "nobody has called an address that is not public")

	// A mount of mallory's own is for mallory alone.
	path := known()
	for who := range w.whos {
		if w.whos[who].insider || !w.whos[who].attacks(frontProxy) {
			continue
		}
		got, found := w.attack(t.Context(), input{who: who, wire: true, target: atProxy, raw: "GET " + path + "/api/v1/namespaces HTTP/1.1\r\nConnection: close\r\n\r\n"})
		require.Nil(t, found)
		require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden, 0}, got.code, "%s: %s", w.whos[who].name, got)
	}
}
