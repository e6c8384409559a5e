package frontproxy

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
)

// FuzzURL holds that whatever path a client sends, what a shard is sent names
// the resolved logical cluster and no other, and leaves the rest as it was.
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
		require.True(t, at.view != nil || !strings.Contains(at.path, "*"), at.path)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://proxy/", http.NoBody)
		r.URL = in
		out := r.Clone(t.Context())
		v := (&gate{}).visit(&call{rest: rest, user: &user.DefaultInfo{Name: "jane"}})
		v.cluster = resolved
		if at.view != nil {
			require.True(t, logicalcluster.NewPath(at.view.granting).IsValid(), at.view.granting)
			v.view = at.view.mount.VirtualWorkspacePath("granting", at.view.object)
		}
		(&forwarding{call: v.call, to: &shardTarget{backend: backend, visit: v}, way: backend}).rewrite(&httputil.ProxyRequest{In: r, Out: out})
		sent, err := url.ParseRequestURI(out.URL.RequestURI())
		require.NoError(t, err)
		require.Equal(t, in.RawQuery, sent.RawQuery)
		l, found, err := request.Locate(strings.TrimPrefix(sent.Path, "/prefix"), shardMounts...)
		require.NoError(t, err)
		require.True(t, found)
		reached := l.Path.String()
		if at.view != nil {
			require.Equal(t, "granting", reached)
			require.Equal(t, at.view.object, l.VirtualWorkspace.Name)
			require.Same(t, at.view.mount, l.Mount)
			reached = l.VirtualWorkspace.Path.String()
		}
		require.Equal(t, resolved, reached)
		require.Equal(t, rest, strings.TrimPrefix(sent.EscapedPath(), "/prefix"+v.view+"/clusters/"+resolved))
	})
}

// TestMounts holds that all that shards serve can be reached, and of cache servers nothing.
func TestMounts(t *testing.T) {
	for _, mount := range request.ShardMounts() {
		require.Equal(t, mount.Prefix, mappingOf(mount.Prefix+"a/b").prefix)
	}
	for _, mount := range request.CacheMounts() {
		path := mount.Prefix + "a/clusters/b/api"
		if mappingOf(path).prefix == "" {
			continue
		}
		at, err := addressOf(path)
		require.Error(t, err, path)
		require.False(t, at.valid, path)
	}
}

// TestAddress holds what of a path is a view, and what is malformed.
func TestAddress(t *testing.T) {
	view := func(mount *request.Mount, granting, object string) *viewAddress {
		return &viewAddress{mount: mount, granting: granting, object: object}
	}
	for path, want := range map[string]address{
		"/services/apiexport/p/e.x/clusters/c/api%2F/v1":                {path: "c", valid: true, view: view(request.APIExports, "p", "e.x"), rest: "/api%2F/v1"},
		"/services/apiexport/root%3Ap/e/clusters/root:c":                {path: "root:c", valid: true, view: view(request.APIExports, "root:p", "e")},
		"/services/apiexport/p/clusters/clusters/clusters/clusters/a/x": {path: "clusters", valid: true, view: view(request.APIExports, "p", "clusters"), rest: "/clusters/a/x"},
		"/services/apiexport/p/e/clusters/%2A/api":                      {path: "*", valid: true, view: view(request.APIExports, "p", "e"), rest: "/api"},
		"/services/apiexport/p/e/clusters/system:admin/api":             {path: "system:admin", view: view(request.APIExports, "p", "e"), rest: "/api"},
		"/services/apiexport/system:admin/e/clusters/c/api":             {path: "c", view: view(request.APIExports, "system:admin", "e"), rest: "/api"},
		"/services/apiresourceschema/c/clusters/c/apis":                 {path: "c", valid: true, view: view(request.APIResourceSchemas, "c", ""), rest: "/apis"},
		"/services/initializingworkspaces/root:org:t/clusters/c":        {path: "c", valid: true, view: view(request.InitializingWorkspaces, "root:org", "t")},
		"/services/terminatingworkspaces/x:t/clusters/*/":               {path: "*", valid: true, view: view(request.TerminatingWorkspaces, "x", "t"), rest: "/"},
		"/shards/one/services/apiexport/p/e/clusters/*/api":             {path: "*", valid: true, view: view(request.APIExports, "p", "e"), rest: "/api", shard: "one"},
		"/shards/one/services/apiexport/p/e/clusters/c":                 {path: "c", valid: true, view: view(request.APIExports, "p", "e"), shard: "one"},
		"/shards/one": {},
		"/shards/*/services/apiexport/p/e/clusters/*/api":                {},
		"/shards/%6fne/services/apiexport/p/e/clusters/*/api":            {},
		"/shards/one/clusters/c/api":                                     {},
		"/shards/one/services/admin/apis":                                {},
		"/shards/one/shards/one/services/apiexport/p/e/clusters/*/api":   {},
		"/services/apiexport/":                                           {},
		"/services/apiexport/p":                                          {},
		"/services/apiexport/p/e/clusters":                               {},
		"/services/apiexport/p/e/clusters/":                              {},
		"/services/apiexport/p/e/cluster/c/api":                          {},
		"/services/apiexport/p/e%2Fclusters%2Fc/clusters/c/api":          {},
		"/services/apiexport/p/e/clusters/c%2Fd/api":                     {},
		"/services/apiexport/p/e/clusters/%zz/api":                       {},
		"/services/apiexport/p/%2e%2e/clusters/c/api":                    {},
		"/services/apiexport/*/e/clusters/c/api":                         {},
		"/services/apiresourceschema/c/e/clusters/c/apis":                {},
		"/services/initializingworkspaces/t/clusters/c":                  {},
		"/services/initializingworkspaces/root:t/extra/clusters/c":       {},
		"/services/terminatingworkspaces/" + "%00:t/clusters/c/api/v1/x": {},
	} {
		got, err := addressOf(path)
		if want.view == nil {
			var invalid *request.InvalidURLError
			require.ErrorAs(t, err, &invalid, path)
			continue
		}
		require.NoError(t, err, path)
		require.Equal(t, want, got, path)
	}
}

// TestIsWatch holds that streams are told as the shards tell watches.
func TestIsWatch(t *testing.T) {
	for target, want := range map[string]bool{
		"/api/v1/configmaps":                                            false,
		"/api/v1/configmaps?watch=true":                                 true,
		"/api/v1/configmaps?watch=1":                                    true,
		"/api/v1/configmaps?watch":                                      true,
		"/api/v1/configmaps?%77atch=true":                               true,
		"/api/v1/configmaps?watch=0":                                    false,
		"/api/v1/configmaps?watch=False":                                false,
		"/api/v1/configmaps?watch=true&limit=garbage":                   true,
		"/api/v1/configmaps?labelSelector=watch%3Dtrue":                 false,
		"/api/v1/configmaps?fieldSelector=metadata.name%3Dx&watch=true": true,
		"/api/v1/watch/configmaps":                                      true,
		"/api/v1/watch/namespaces/x/configmaps/y":                       true,
		"/apis/apps/v1/watch/namespaces/x/deployments":                  true,
		"/api/v1/namespaces/watch/configmaps":                           false,
		"/api/v1/namespaces/watch/configmaps/x":                         false,
		"/api/v1/namespaces/watch/configmaps?watch=true":                true,
		"/api/v1/namespaces/x/configmaps/watch":                         false,
		"/api/v1/namespaces/x/pods/watch/log":                           false,
		"/api/v1/namespaces/x/configmaps/y?watch=true":                  false,
		"/apis/watch/v1/things":                                         false,
		"/apis/watch/v1/namespaces/x/things/y":                          false,
		"/apis/example.com/watch/things/y":                              false,
		"/apis/tenancy.kcp.io/v1alpha1/workspaces/watch/status":         false,
		"/openapi/v3?watch=true":                                        false,
		"/watch/api/v1/configmaps":                                      false,
		"/api/v1/watch":                                                 false,
		"":                                                              false,
	} {
		for _, below := range []string{"/clusters/root", "/clusters/root:watch", "/clusters/watch", "/services/apiexport/watch/watch/clusters/watch", "/services/apiresourceschema/c/clusters/*"} {
			url := "https://proxy" + below + target
			require.Equal(t, want, isWatch(httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)), url)
			require.False(t, isWatch(httptest.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)), url)
		}
		// The shard, below the logical cluster, agrees.
		if info, err := requestInfos.NewRequestInfo(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://shard"+target, http.NoBody)); err == nil {
			require.Equal(t, want, info.IsResourceRequest && info.Verb == "watch", target)
		}
	}
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	certFile, keyFile := ca.issue(t, dir, "proxy")
	content, err := dynamiccertificates.NewDynamicServingContentFromFiles("test", certFile, keyFile)
	require.NoError(t, err)
	config, err := newTLSConfig(ca.file, content)
	require.NoError(t, err)
	presented := func() *tls.Certificate {
		t.Helper()
		certificate, err := config.GetClientCertificate(nil)
		require.NoError(t, err)
		return certificate
	}
	first := presented()

	require.NoError(t, os.WriteFile(certFile, []byte("half written"), 0o600))
	require.Error(t, content.RunOnce(t.Context()))
	require.Equal(t, first, presented())

	other := filepath.Join(dir, "other")
	require.NoError(t, os.Mkdir(other, 0o700))
	newCert, newKey := ca.issue(t, other, "proxy")
	require.NoError(t, os.WriteFile(keyFile, mustRead(t, newKey), 0o600))
	require.NoError(t, os.WriteFile(certFile, mustRead(t, newCert), 0o600))
	require.NoError(t, content.RunOnce(t.Context()))
	require.NotEqual(t, first.Certificate, presented().Certificate)
}
