package frontproxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestAllShards checks that requests of administrators to all logical clusters are sent to each
// shard with their identity, and that the responses are merged. Other users are rejected.
func TestAllShards(t *testing.T) {
	w := newWorld(t, "root", "one")
	w.ready(t)
	var requests recorder[*http.Request]
	for name, shard := range w.shards {
		shard.handle(func(rw http.ResponseWriter, r *http.Request) {
			requests.add(r)
			rw.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(rw, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":%q,"resourceVersion":"5"}}]}`, name)
		})
	}
	w.awaitShards(t)
	const path = "/clusters/*/api/v1/namespaces/a%3Ab/configmaps"
	admin := w.person(t, "admin", request.GroupAdmin)
	res, body := admin.get(t, path+"?labelSelector=a%3Db&pretty=1", "Impersonate-User", "jane", "Authorization", "Basic x", "X-Other", "y",
		"X-Kcp-Internal-Ready-Timeout", "1h", "X-Remote-Group", "system:masters", "Accept-Encoding", "gzip", "User-Agent", "test")
	require.Equal(t, http.StatusOK, res.StatusCode, body)
	var list struct {
		Items []struct {
			Metadata struct{ Name, ResourceVersion string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	require.Len(t, list.Items, 2)
	require.Equal(t, "one", list.Items[0].Metadata.Name)
	require.True(t, strings.HasPrefix(list.Items[0].Metadata.ResourceVersion, "m1."))
	got := requests.take()
	require.Len(t, got, 4, "two requests per shard expected")
	for _, r := range got {
		require.Equal(t, path, r.URL.EscapedPath())
		require.Equal(t, "a=b", r.URL.Query().Get("labelSelector"))
		require.Equal(t, "proxy", r.TLS.PeerCertificates[0].Subject.CommonName)
		requireHeaders(t, r.Header, "X-Remote-User", "admin", request.MergedHeader, "true", "Accept", "application/json",
			"Impersonate-User", "jane", "X-Forwarded-For", "127.0.0.1", "Audit-Id", got[0].Header.Get("Audit-Id"),
			"Authorization", "", "X-Other", "", request.ReadyTimeoutHeader, "", "Accept-Encoding", "")
		require.NotContains(t, r.Header["X-Remote-Group"], "system:masters")
		require.Contains(t, r.Header["X-Remote-Group"], request.GroupAdmin)
		require.NotEmpty(t, r.Header.Get("Audit-ID"))
	}
	for _, p := range []*person{w.person(t, "jane"), w.person(t, "jane", "system:kcp:admins", "system:kcp:logical-cluster-admin"), w.person(t, "master", "system:masters")} {
		for _, path := range []string{path, "/clusters/%2A/api/v1/configmaps?watch=1", "/clusters/*/apis"} {
			p.fails(t, path, http.StatusForbidden, request.MergedHeader, "true")
		}
	}
	for path, want := range map[string]int{
		"/clusters/*": http.StatusMethodNotAllowed, "/clusters/*/apis": http.StatusMethodNotAllowed, "/clusters/*/api/v1/namespaces/a": http.StatusMethodNotAllowed,
		"/clusters/*/metrics": http.StatusNotImplemented, "/clusters/**/api/v1/configmaps": http.StatusForbidden, "/clusters/*%2Fx/api/v1/configmaps": http.StatusForbidden,
	} {
		admin.fails(t, path, want)
	}
	require.Empty(t, requests.take(), "no shard must receive a request")

	w.shards["one"].kill()
	res, body = admin.get(t, path)
	s := status(t, res, body, http.StatusServiceUnavailable)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Equal(t, "one", s.Details.Causes[0].Field)
	require.NotContains(t, body, w.shards["one"].addr)
	res, _ = admin.want(t, path, http.StatusOK, "X-Shardplane-Partial", "allow")
	require.Contains(t, res.Header.Get("Warning"), "one")
}

func (w *world) awaitShards(t testing.TB) {
	t.Helper()
	for name := range w.shards {
		require.Eventually(t, func() bool { return w.proxy.shards.backend(name) != nil }, timeout, 1)
	}
}

// FuzzURL checks that for all client paths, the request to the shard contains the resolved logical
// cluster only, and an unchanged rest.
func FuzzURL(f *testing.F) {
	for _, path := range []string{
		"/clusters/root/api", "/clusters/root:a/apis/x%2Fy", "/clusters/root%2Fapi/v1", "/clusters/%2A/api", "/clusters/a/clusters/b/api",
		"/clusters/root", "/clusters//x", "/clusters/root/%zz", "/clusters/root/..%2f..", "/clusters/root/a;b|c\"d", "/clusters/system:admin/api",
		"/services/apiexport/p/e.x/clusters/c/api/v1", "/services/apiexport/root:p/e/clusters/root:c", "/services/apiexport/p%2fe/clusters/c", "/services/apiexport/p/../clusters/c/x",
		"/services/apiresourceschema/c/clusters/*/apis", "/services/initializingworkspaces/root:t/clusters/c/x%2Fy", "/services/terminatingworkspaces/a%3At/clusters/c/..%2f", "/services/apiexport/p/e/clusters/system:x/y",
	} {
		f.Add(path)
	}
	const resolved = "2x1kabcdefgh0123"
	backend := newBackend(&peers.Peer{Name: "one", URL: "https://shard:6444/prefix"}, nil)
	f.Fuzz(func(t *testing.T, path string) {
		in, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		at, err := addressOf(in.EscapedPath())
		if err != nil || !at.valid {
			return
		}
		rest := at.rest
		require.NotContains(t, at.path, "system:")
		require.True(t, logicalcluster.NewPath(at.path).IsValid(), at.path)
		require.True(t, at.virtualWorkspace != nil || !strings.Contains(at.path, "*"), at.path)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://proxy/", http.NoBody)
		r.URL = in
		out := r.Clone(t.Context())
		v := (&gate{}).accessRequest(&call{rest: rest, user: &user.DefaultInfo{Name: "jane"}})
		v.cluster = resolved
		if at.virtualWorkspace != nil {
			require.True(t, logicalcluster.NewPath(at.virtualWorkspace.granting).IsValid(), at.virtualWorkspace.granting)
			v.virtualWorkspace = at.virtualWorkspace.mount.VirtualWorkspacePath("granting", at.virtualWorkspace.object)
		}
		(&forwarding{call: v.call, to: &shardTarget{backend: backend, accessRequest: v}, way: backend}).rewrite(&httputil.ProxyRequest{In: r, Out: out})
		sent, err := url.ParseRequestURI(out.URL.RequestURI())
		require.NoError(t, err)
		require.Equal(t, in.RawQuery, sent.RawQuery)
		l, found, err := request.Locate(strings.TrimPrefix(sent.Path, "/prefix"), shardMounts...)
		require.NoError(t, err)
		require.True(t, found)
		reached := l.Path.String()
		if at.virtualWorkspace != nil {
			require.Equal(t, "granting", reached)
			require.Equal(t, at.virtualWorkspace.object, l.VirtualWorkspace.Name)
			require.Same(t, at.virtualWorkspace.mount, l.Mount)
			reached = l.VirtualWorkspace.Path.String()
		}
		require.Equal(t, resolved, reached)
		require.Equal(t, rest, strings.TrimPrefix(sent.EscapedPath(), "/prefix"+v.virtualWorkspace+"/clusters/"+resolved))
	})
}

// TestMounts checks that all mounts of shards are served, and none of cache servers.
func TestMounts(t *testing.T) {
	for _, mount := range request.ShardMounts() {
		prefix, _ := mappingOf(mount.Prefix + "a/b")
		require.Equal(t, mount.Prefix, prefix)
	}
	for _, mount := range request.CacheMounts() {
		path := mount.Prefix + "a/clusters/b/api"
		if prefix, _ := mappingOf(path); prefix == "" {
			continue
		}
		at, err := addressOf(path)
		require.Error(t, err, path)
		require.False(t, at.valid, path)
	}
}

func TestAddress(t *testing.T) {
	virtualWorkspace := func(mount *request.Mount, granting, object string) *virtualWorkspaceAddress {
		return &virtualWorkspaceAddress{mount: mount, granting: granting, object: object}
	}
	for path, want := range map[string]address{
		"/services/apiexport/p/e.x/clusters/c/api%2F/v1":                {path: "c", valid: true, virtualWorkspace: virtualWorkspace(request.APIExports, "p", "e.x"), rest: "/api%2F/v1"},
		"/services/apiexport/root%3Ap/e/clusters/root:c":                {path: "root:c", valid: true, virtualWorkspace: virtualWorkspace(request.APIExports, "root:p", "e")},
		"/services/apiexport/p/clusters/clusters/clusters/clusters/a/x": {path: "clusters", valid: true, virtualWorkspace: virtualWorkspace(request.APIExports, "p", "clusters"), rest: "/clusters/a/x"},
		"/services/apiexport/p/e/clusters/%2A/api":                      {path: "*", valid: true, virtualWorkspace: virtualWorkspace(request.APIExports, "p", "e"), rest: "/api"},
		"/services/apiexport/p/e/clusters/system:admin/api":             {path: "system:admin", virtualWorkspace: virtualWorkspace(request.APIExports, "p", "e"), rest: "/api"},
		"/services/apiexport/system:admin/e/clusters/c/api":             {path: "c", virtualWorkspace: virtualWorkspace(request.APIExports, "system:admin", "e"), rest: "/api"},
		"/services/apiresourceschema/c/clusters/c/apis":                 {path: "c", valid: true, virtualWorkspace: virtualWorkspace(request.APIResourceSchemas, "c", ""), rest: "/apis"},
		"/services/initializingworkspaces/root:org:t/clusters/c":        {path: "c", valid: true, virtualWorkspace: virtualWorkspace(request.InitializingWorkspaces, "root:org", "t")},
		"/services/terminatingworkspaces/x:t/clusters/*/":               {path: "*", valid: true, virtualWorkspace: virtualWorkspace(request.TerminatingWorkspaces, "x", "t"), rest: "/"},
		"/shards/one/services/apiexport/p/e/clusters/*/api":             {path: "*", valid: true, virtualWorkspace: virtualWorkspace(request.APIExports, "p", "e"), rest: "/api", shard: "one"},
		"/shards/one/services/apiexport/p/e/clusters/c":                 {path: "c", valid: true, virtualWorkspace: virtualWorkspace(request.APIExports, "p", "e"), shard: "one"},
	} {
		got, err := addressOf(path)
		require.NoError(t, err, path)
		require.Equal(t, want, got, path)
	}
	for _, path := range []string{
		"/shards/one", "/shards/*/services/apiexport/p/e/clusters/*/api",
		"/shards/%6fne/services/apiexport/p/e/clusters/*/api", "/shards/one/clusters/c/api",
		"/shards/one/services/admin/apis", "/shards/one/shards/one/services/apiexport/p/e/clusters/*/api",
		"/services/apiexport/", "/services/apiexport/p", "/services/apiexport/p/e/clusters",
		"/services/apiexport/p/e/clusters/", "/services/apiexport/p/e/cluster/c/api",
		"/services/apiexport/p/e%2Fclusters%2Fc/clusters/c/api", "/services/apiexport/p/e/clusters/c%2Fd/api",
		"/services/apiexport/p/e/clusters/%zz/api", "/services/apiexport/p/%2e%2e/clusters/c/api",
		"/services/apiexport/*/e/clusters/c/api", "/services/apiresourceschema/c/e/clusters/c/apis",
		"/services/initializingworkspaces/t/clusters/c", "/services/initializingworkspaces/root:t/extra/clusters/c",
		"/services/terminatingworkspaces/%00:t/clusters/c/api/v1/x",
	} {
		_, err := addressOf(path)
		var invalid *request.InvalidURLError
		require.ErrorAs(t, err, &invalid, path)
	}
}

func TestIsWatch(t *testing.T) {
	watches := []string{
		"/api/v1/configmaps?watch=true", "/api/v1/configmaps?watch=1", "/api/v1/configmaps?watch",
		"/api/v1/configmaps?%77atch=true", "/api/v1/configmaps?watch=true&limit=garbage",
		"/api/v1/configmaps?fieldSelector=metadata.name%3Dx&watch=true", "/api/v1/watch/configmaps",
		"/api/v1/watch/namespaces/x/configmaps/y", "/apis/apps/v1/watch/namespaces/x/deployments",
		"/api/v1/namespaces/watch/configmaps?watch=true",
	}
	others := []string{
		"/api/v1/configmaps", "/api/v1/configmaps?watch=0", "/api/v1/configmaps?watch=False",
		"/api/v1/configmaps?labelSelector=watch%3Dtrue", "/api/v1/namespaces/watch/configmaps",
		"/api/v1/namespaces/watch/configmaps/x", "/api/v1/namespaces/x/configmaps/watch",
		"/api/v1/namespaces/x/pods/watch/log", "/api/v1/namespaces/x/configmaps/y?watch=true", "/apis/watch/v1/things",
		"/apis/watch/v1/namespaces/x/things/y", "/apis/example.com/watch/things/y",
		"/apis/tenancy.kcp.io/v1alpha1/workspaces/watch/status", "/openapi/v3?watch=true", "/watch/api/v1/configmaps",
		"/api/v1/watch", "",
	}
	for i, target := range slices.Concat(watches, others) {
		want := i < len(watches)
		for _, below := range []string{"/clusters/root", "/clusters/root:watch", "/clusters/watch", "/services/apiexport/watch/watch/clusters/watch", "/services/apiresourceschema/c/clusters/*"} {
			url := "https://proxy" + below + target
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
			require.Equal(t, want, isWatch(r, parsedPath{}.of(r)), url)
			require.False(t, isWatch(&http.Request{Method: http.MethodPost, URL: r.URL}, parsedPath{}.of(r)), url)
		}
		// The shard agrees for the path below the logical cluster.
		if info, err := requestInfos.NewRequestInfo(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://shard"+target, http.NoBody)); err == nil {
			require.Equal(t, want, info.IsResourceRequest && info.Verb == "watch", target)
		}
	}
}

// TestWatchOfRewrittenPath: whether a request is a watch is determined after the logical cluster of a token was added to
// its path.
func TestWatchOfRewrittenPath(t *testing.T) {
	rec := &record{}
	ctx := context.WithValue(t.Context(), recordKey{}, rec)
	const rest = "/api/v1/namespaces/clusters/pods?watch=true"
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, rest, http.NoBody)
	require.False(t, isLongRunning(r, parsedPath{}.of(r)))
	r = httptest.NewRequestWithContext(ctx, http.MethodGet, "/clusters/team"+rest, http.NoBody)
	withTarget(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	require.True(t, rec.long)
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	certFile, keyFile := ca.issue(t, dir, "proxy")
	content, err := dynamiccertificates.NewDynamicServingContentFromFiles("test", certFile, keyFile)
	require.NoError(t, err)
	current := clientCertificate(content)
	inUse := func() *tls.Certificate {
		t.Helper()
		certificate, err := current(nil)
		require.NoError(t, err)
		return certificate
	}
	first := inUse()
	ca.make(t, dir, "proxy", pki.Client("renewed"))
	require.NoError(t, content.RunOnce(t.Context()))
	require.NotEqual(t, first.Certificate, inUse().Certificate)
}
