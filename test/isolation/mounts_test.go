package isolation

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	doors      = "/clusters/$A$/apis/doors.example/v1/doors"
	workspaces = "/clusters/$A$/apis/tenancy.kcp.io/v1alpha1/workspaces"
)

// testMounts checks that a tenant who mounts arbitrary URLs gets no access to internal addresses,
// to servers of the installation with other credentials, or to workspaces of others.
func (w *world) testMounts(t *testing.T) {
	const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"doors.doors.example"},"spec":{"group":"doors.example","scope":"Cluster","names":{"plural":"doors","singular":"door","kind":"Door","listKind":"DoorList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).code)
	w.untilResponse(t, atProxy, http.MethodGet, doors, "", http.StatusOK, "", "doors are not served")
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
		w.untilResponse(t, atProxy, http.MethodGet, workspaces+"/"+name, "", 0, `"type":"WorkspaceMountReady"`, "the mount of %s has no condition", url)
		return "/clusters/" + w.alpha.path + ":" + name
	}
	// awaitMounts waits until the front-proxy has processed all mounts so far, and returns the path
	// of a mount of mallory's own workspace. The front-proxy processes mounts in the order of their
	// changes, so that this last one is forwarded only after the others.
	awaitMounts := func() string {
		path := door("https://" + proxy + "/clusters/" + w.alpha.path)
		w.untilResponse(t, atProxy, http.MethodGet, path+"/api/v1/namespaces", "", http.StatusOK, "", "a mount of mallory's own workspace is not forwarded")
		return path
	}
	secret := "/api/v1/namespaces/vault/secrets/treasure"

	// Internal addresses in several notations, and servers of the installation with a path that is
	// not a workspace.
	addresses := []string{
		cache + "/services/cache/shards/*/clusters/*", "https://" + proxy + "/metrics", "https://" + proxy, "https://" + shard + "/clusters/*", "https://" + shard + "/clusters/system:admin",
		"https://" + shard + "/services/apiexport/root/tenancy.kcp.io/clusters/*", "https://" + shard + "/clusters/" + w.bravo.name + "/api", "https://" + proxy + "/clusters/root%3Abravo%2Fapi",
	}
	for _, host := range []string{"127.0.0.1" + ports, "localhost" + ports, "[::1]" + ports, "[::ffff:7f00:1]" + ports, "0.0.0.0" + ports, "0" + ports, "2130706433" + ports, "10.0.0.1", "169.254.169.254", "[fd00::1]", "[64:ff9b::7f00:1]" + ports} {
		addresses = append(addresses, "https://"+host)
	}
	rejected := map[string]string{}
	for _, url := range addresses {
		rejected[url] = door(url)
	}
	awaitMounts()
	for url, path := range rejected {
		for _, below := range []string{secret, "/api"} {
			got := w.mallory(t, http.MethodGet, path+below, "")
			require.Equal(t, http.StatusServiceUnavailable, got.code, "%s: %s", url, got)
		}
	}
	// For workspaces of others, the response is the same whether they exist or not.
	missing := door("https://" + proxy + "/clusters/" + w.absent.path)
	awaitMounts()
	absent := w.mallory(t, http.MethodGet, missing+secret, "")
	require.Equal(t, http.StatusForbidden, absent.code, "%s", absent)
	others := map[string]string{}
	for _, at := range []string{proxy, shard} {
		for _, of := range []string{w.bravo.path, w.bravo.name, w.blind.path} {
			url := "https://" + at + "/clusters/" + of
			others[url] = door(url)
		}
	}
	awaitMounts()
	for url, path := range others {
		for _, lines := range [][]string{nil, {"X-Remote-User: kcp-admin", "X-Remote-Group: system:masters"}, {"Impersonate-User: kcp-admin", "Impersonate-Group: system:kcp:admin"}} {
			got := w.mallory(t, http.MethodGet, path+secret, "", lines...)
			require.Equal(t, http.StatusForbidden, got.code, "%s: %s", url, got)
			require.Equal(t, string(absent.body), string(got.body))
		}
	}
	require.Equal(t, calls, w.hook.calls.Load(), "a non-public address was called")

	// Only mallory has access to a mount of mallory's own workspace.
	path := awaitMounts()
	for attacker := range w.attackers {
		if w.attackers[attacker].insider || !w.attackers[attacker].attacks(frontProxy) {
			continue
		}
		got := w.mustAttack(t, input{attacker: attacker, wire: true, target: atProxy, raw: get(path + "/api/v1/namespaces")})
		require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden, 0}, got.code, "%s: %s", w.attackers[attacker].name, got)
	}
}
