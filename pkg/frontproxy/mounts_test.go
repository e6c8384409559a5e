package frontproxy

import (
	"bufio"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

func (w *world) mount(t testing.TB, name, url string, edit ...func(*tenancyv1alpha1.Workspace)) {
	t.Helper()
	w.workspace(t, "root", "root", name, "", append([]func(*tenancyv1alpha1.Workspace){func(ws *tenancyv1alpha1.Workspace) {
		ws.Spec.Mount, ws.Spec.URL = &tenancyv1alpha1.Mount{}, url
	}}, edit...)...)
	if w.proxy != nil {
		require.Eventually(t, func() bool {
			target, _ := w.proxy.shards.index.Lookup("root:" + name)
			return target.Mount == url
		}, timeout, 1)
	}
}

// TestMountsOfWorkspaces checks that a mount with a URL of the installation refers to that
// workspace, with the user's own identity, and that cycles of mounts are rejected.
func TestMountsOfWorkspaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.IndexTimeout = 20 * time.Millisecond // the delay of denied requests
	w.child(t, "root", "a", "aaaa")
	w.shards["root"].admits("jane")
	w.ready(t, "root:a", "root")
	shard := w.shards["root"].url() + "/clusters/"
	w.mount(t, "m", w.proxy.URL()+"/clusters/root:a")
	w.mount(t, "by-shard", shard+"aaaa/")
	w.mount(t, "hop1", shard+"root:m")
	w.mount(t, "hop2", shard+"root:hop1")
	w.mount(t, "hop3", shard+"root:hop2")
	w.mount(t, "circle", shard+"root:circle")
	w.mount(t, "system", shard+"system:admin")
	w.mount(t, "all", shard+"*")
	w.mount(t, "process", w.proxy.URL()+"/metrics")
	w.mount(t, "nowhere", shard+"root:absent")
	w.mount(t, "unready", shard+"root:a", markUnavailable)
	w.mount(t, "new", "")

	jane, joe := w.person(t, "jane"), w.person(t, "joe")
	for _, name := range []string{"m", "by-shard", "hop1", "hop2"} {
		got := jane.echoed(t, "/clusters/root:"+name+"/api/x%2Fy?z=1")
		require.Equal(t, "/clusters/aaaa/api/x%2Fy?z=1", got.URI)
		require.Equal(t, []string{"jane"}, got.Header["X-Remote-User"])
	}
	for name, want := range map[string]int{
		"hop3": http.StatusServiceUnavailable, "circle": http.StatusServiceUnavailable, "system": http.StatusServiceUnavailable, "all": http.StatusServiceUnavailable,
		"process": http.StatusServiceUnavailable, "unready": http.StatusServiceUnavailable, "new": http.StatusServiceUnavailable,
		"nowhere": http.StatusForbidden, "m:below": http.StatusForbidden,
	} {
		jane.want(t, "/clusters/root:"+name+"/api", want)
		joe.want(t, "/clusters/root:"+name+"/api", http.StatusForbidden)
	}
	_, unknown := joe.get(t, "/clusters/root:unknown/api")
	for _, name := range []string{"m", "circle", "new"} {
		_, body := joe.get(t, "/clusters/root:"+name+"/api")
		require.Equal(t, unknown, body)
	}
	jane.fails(t, "/services/apiexport/root/e/clusters/root:m/api", http.StatusForbidden)
}

// TestMountsOfServers checks that a mounted server outside of the installation receives requests
// without the identity of the user, and cannot redirect clients.
func TestMountsOfServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	mounted := w.addMapped(t, "mounted")
	w.options.Mounts.AllowedCIDRs, w.options.Mounts.CAFile = []string{"127.0.0.0/8"}, w.servingCA.file
	w.shards["root"].admits("jane")
	w.ready(t, "root", "root")
	w.mount(t, "m", mounted.url()+"/base/")
	jane, joe := w.person(t, "jane", "devs"), w.person(t, "joe")

	got := jane.echoed(t, "/clusters/root:m/api/x%2Fy?z=1", "X-Remote-User", "root", "X-Remote-Group", "system:masters", "Cookie", "a=b", "Authorization", "Bearer secret",
		"Impersonate-User", "joe", "Impersonate_Group", "g", "X-Forwarded-For", "1.2.3.4", "Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io", "X-Other", "kept")
	require.Equal(t, []string{"mounted", "/base/api/x%2Fy?z=1"}, []string{got.Shard, got.URI})
	require.Equal(t, []string{mounted.addr, ""}, []string{got.Host, got.Cert})
	requireHeaders(t, got.Header, "Sec-Websocket-Protocol", "v4.channel.k8s.io", "X-Other", "kept")
	for name, values := range got.Header {
		require.NotContains(t, strings.Join(append(values, name), " "), "jane")
		require.NotContains(t, strings.ToLower(name), "remote")
		require.NotContains(t, []string{"Cookie", "Authorization", "Impersonate-User", "Impersonate_group", "X-Forwarded-For", "X-Forwarded-Host"}, name)
	}
	res, body := jane.do(t, http.MethodPost, "/clusters/root:m", strings.NewReader("hello"))
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Contains(t, body, `"URI":"/base","Proto":"HTTP/2.0"`)
	require.Contains(t, body, `"Body":"hello"`)

	_, body = joe.want(t, "/clusters/root:m/api", http.StatusForbidden)
	_, unknown := joe.get(t, "/clusters/root:n/api")
	require.Equal(t, unknown, body)

	mounted.handle(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Set-Cookie", "a=b")
		rw.Header().Set(request.AccessAuthorizedHeader, "true")
		if r.URL.Path == "/base/elsewhere" {
			http.Redirect(rw, r, "https://elsewhere.example/", http.StatusTemporaryRedirect)
		}
	})
	res, body = jane.get(t, "/clusters/root:m/elsewhere")
	require.Contains(t, status(t, res, body, http.StatusBadGateway).Message, "redirect")
	require.Empty(t, res.Header.Get("Location"))
	res, _ = jane.want(t, "/clusters/root:m/api", http.StatusOK)
	require.Empty(t, res.Header.Get("Set-Cookie"))
	require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader))

	lines, ended := make(chan string), make(chan string, 1)
	mounted.watches(lines, ended)
	watch := bufio.NewReader(jane.stream(t.Context(), t, "/clusters/root:m/api/v1/namespaces?watch=true").Body)
	lines <- "first"
	requireLine(t, watch, "first")
	close(lines)

	mounted.handle(func(rw http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Remote-User", "user") // echoUpgrade is for shards
		echoUpgrade(rw, r)
	})
	w.upgrade(t, "/clusters/root:m/exec", w.clientCA.pair(t, "jane"))

	w.shards["root"].kill()
	jane.fails(t, "/clusters/root:m/api", http.StatusServiceUnavailable)
}

// TestMountsOfForbiddenServers checks that mounts cannot reach private addresses, or servers with
// invalid certificates.
func TestMountsOfForbiddenServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	mounted := w.addMapped(t, "mounted")
	reached := make(chan string, 1)
	mounted.handle(func(_ http.ResponseWriter, r *http.Request) { reached <- r.RequestURI })
	w.shards["root"].admits("jane")
	w.options.Mounts.CAFile = w.servingCA.file
	w.ready(t, "root", "root")
	jane := w.person(t, "jane")
	port := mounted.addr[strings.LastIndex(mounted.addr, ":"):]
	for i, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		w.mount(t, fmt.Sprintf("m%d", i), "https://"+host+port)
		res, body := jane.get(t, fmt.Sprintf("/clusters/root:m%d/api", i))
		require.Contains(t, status(t, res, body, http.StatusServiceUnavailable).Message, "the mounted server is not reachable", host)
		require.NotContains(t, body, "127.0.0.1")
	}
	require.Empty(t, mounted.connections())
	w.stop()

	w.options.Mounts.AllowedCIDRs, w.options.Mounts.CAFile = []string{"127.0.0.0/8"}, w.foreigner.file
	w.ready(t, "root", "root")
	jane.fails(t, "/clusters/root:m0/api", http.StatusServiceUnavailable)
	require.Empty(t, reached)
}

// TestMountsOfTrustedServers checks that trusted hosts receive the identity of the user, if the
// name is valid there.
func TestMountsOfTrustedServers(t *testing.T) {
	w := newWorld(t, "root")
	w.options.Authentication.DropGroups = []string{"secret-group"}
	mounted := w.addMapped(t, "mounted")
	o := &w.options.Mounts
	o.CAFile, o.TrustedHosts = w.servingCA.file, []string{mounted.addr}
	o.ClientCertFile, o.ClientKeyFile = w.foreigner.issue(t, w.dir, "for-mounts")
	w.shards["root"].admits("jane")
	w.ready(t, "root", "root")
	w.mount(t, "m", mounted.url())
	got := w.person(t, "jane", "devs", "secret-group").echoed(t, "/clusters/root:m/api", "X-Remote-User", "root", "Authorization", "Basic eDp5", "Cookie", "a=b")
	require.Equal(t, "for-mounts", got.Cert)
	requireHeaders(t, got.Header, "X-Remote-User", "jane", "Authorization", "", "Cookie", "")
	require.ElementsMatch(t, []string{"devs", "system:authenticated"}, got.Header["X-Remote-Group"])

	require.True(t, hasGlobalName(&user.DefaultInfo{Name: "jane"}))
	for _, userInfo := range []user.DefaultInfo{
		{Name: "system:serviceaccount:default:default"},
		{Name: "jane", Extra: map[string][]string{request.ExtraScopes: {"cluster:a"}}},
		{Name: "jane", Extra: map[string][]string{request.ExtraWarrant: {"{}"}}},
	} {
		require.False(t, hasGlobalName(&userInfo), userInfo.Name)
	}
}

func TestMountOptions(t *testing.T) {
	for want, o := range map[string]MountOptions{
		"--mount-allowed-cidrs: \"x\" is not a CIDR":              {AllowedCIDRs: []string{"x"}},
		"--mount-trusted-hosts: \"https://x\" is not a host":      {TrustedHosts: []string{"https://x"}, ClientCertFile: "c", ClientKeyFile: "k"},
		"must be specified together":                              {ClientCertFile: "c"},
		"requires --mount-client-cert-file":                       {TrustedHosts: []string{"x"}},
		"--mount-client-cert-file requires --mount-trusted-hosts": {ClientCertFile: "c", ClientKeyFile: "k"},
		"--mount-trusted-hosts: \"x/y\" is not":                   {TrustedHosts: []string{"x/y"}, ClientCertFile: "c", ClientKeyFile: "k"},
	} {
		found := false
		for _, err := range o.validate() {
			found = found || strings.Contains(err.Error(), want)
		}
		require.True(t, found, want)
	}
	same := NewOptions()
	same.ProxyClientCertFile, same.Mounts.ClientCertFile = "x.crt", "./x.crt"
	require.ErrorContains(t, same.Complete().Validate(), "--mount-client-cert-file must not be --proxy-client-cert-file")
	_, err := newMounts(MountOptions{CAFile: filepath.Join(t.TempDir(), "none")})
	require.ErrorContains(t, err, "reading --mount-ca-file")
}
