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
	} {
		f.Add(path)
	}
	const resolved = "2x1kabcdefgh0123"
	backend := newBackend(&peers.Peer{Name: "one", URL: "https://shard:6444/prefix"}, nil)
	f.Fuzz(func(t *testing.T, path string) {
		in, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(in.EscapedPath(), request.Clusters.Prefix) {
			return
		}
		segment, rest := splitEscaped(in.EscapedPath())
		cluster, ok := clusterPath(segment)
		if !ok {
			return
		}
		require.True(t, logicalcluster.NewPath(cluster).IsValid(), cluster)
		require.NotContains(t, cluster, "*")
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://proxy/", http.NoBody)
		r.URL = in
		out := r.Clone(t.Context())
		to := &route{backend: backend, cluster: resolved, rest: rest, user: &user.DefaultInfo{Name: "jane"}}
		to.rewrite(&forwarder{})(&httputil.ProxyRequest{In: r, Out: out})
		sent, err := url.ParseRequestURI(out.URL.RequestURI())
		require.NoError(t, err)
		require.Equal(t, in.RawQuery, sent.RawQuery)
		l, found, err := request.Locate(strings.TrimPrefix(sent.Path, "/prefix"), request.Clusters)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, resolved, l.Path.String())
		require.Equal(t, rest, strings.TrimPrefix(sent.EscapedPath(), "/prefix/clusters/"+resolved))
	})
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
		for _, cluster := range []string{"root", "root:watch", "watch"} {
			url := "https://proxy/clusters/" + cluster + target
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
