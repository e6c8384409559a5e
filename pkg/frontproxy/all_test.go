package frontproxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestAllShards: what administrators ask of all logical clusters goes to each shard, in
// their name, and the answers become one. For others nothing does.
func TestAllShards(t *testing.T) {
	w := newWorld(t, "root", "one")
	w.ready(t)
	var mu sync.Mutex
	var got []*http.Request
	for name, shard := range w.shards {
		shard.handle(func(rw http.ResponseWriter, r *http.Request) {
			mu.Lock()
			got = append(got, r)
			mu.Unlock()
			rw.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(rw, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":%q,"resourceVersion":"5"}}]}`, name)
		})
	}
	w.knowsShards(t)
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
	require.Len(t, got, 4, "each shard twice")
	for _, r := range got {
		require.Equal(t, path, r.URL.EscapedPath())
		require.Equal(t, "a=b", r.URL.Query().Get("labelSelector"))
		require.Equal(t, "proxy", r.TLS.PeerCertificates[0].Subject.CommonName)
		require.Equal(t, []string{"admin"}, r.Header["X-Remote-User"])
		require.NotContains(t, r.Header["X-Remote-Group"], "system:masters")
		require.Contains(t, r.Header["X-Remote-Group"], request.GroupAdmin)
		require.Equal(t, "true", r.Header.Get(request.MergedHeader))
		require.Equal(t, "application/json", r.Header.Get("Accept"))
		require.Equal(t, "jane", r.Header.Get("Impersonate-User"))
		require.Equal(t, "127.0.0.1", r.Header.Get("X-Forwarded-For"))
		require.Equal(t, got[0].Header.Get("Audit-ID"), r.Header.Get("Audit-ID"))
		require.NotEmpty(t, r.Header.Get("Audit-ID"))
		for _, name := range []string{"Authorization", "X-Other", request.ReadyTimeoutHeader, "Accept-Encoding"} {
			require.Empty(t, r.Header.Get(name), name)
		}
	}
	got = nil
	for _, p := range []*person{w.person(t, "jane"), w.person(t, "jane", "system:kcp:admins", "system:kcp:logical-cluster-admin"), w.person(t, "master", "system:masters")} {
		for _, path := range []string{path, "/clusters/%2A/api/v1/configmaps?watch=1", "/clusters/*/apis"} {
			res, body := p.get(t, path, request.MergedHeader, "true")
			status(t, res, body, http.StatusForbidden)
		}
	}
	for path, want := range map[string]int{
		"/clusters/*": http.StatusMethodNotAllowed, "/clusters/*/apis": http.StatusMethodNotAllowed, "/clusters/*/api/v1/namespaces/a": http.StatusMethodNotAllowed,
		"/clusters/*/metrics": http.StatusNotImplemented, "/clusters/**/api/v1/configmaps": http.StatusForbidden, "/clusters/*%2Fx/api/v1/configmaps": http.StatusForbidden,
	} {
		res, body := admin.get(t, path)
		status(t, res, body, want)
	}
	require.Empty(t, got, "no shard is asked")

	w.shards["one"].kill()
	res, body = admin.get(t, path)
	s := status(t, res, body, http.StatusServiceUnavailable)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Equal(t, "one", s.Details.Causes[0].Field)
	require.NotContains(t, body, w.shards["one"].addr)
	res, _ = admin.get(t, path, "X-Shardplane-Partial", "allow")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Contains(t, res.Header.Get("Warning"), "one")
}

// knowsShards waits until there is a way to each shard.
func (w *world) knowsShards(t testing.TB) {
	t.Helper()
	for name := range w.shards {
		require.Eventually(t, func() bool { return w.proxy.shards.backend(name) != nil }, timeout, 1)
	}
}
