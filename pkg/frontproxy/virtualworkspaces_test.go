package frontproxy

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestVirtualWorkspacesAreForwarded checks that requests through a virtual workspace are forwarded to the shard of the objects,
// with resolved names, and that wildcard requests are rejected if there are several shards.
func TestVirtualWorkspacesAreForwarded(t *testing.T) {
	w := newWorld(t, "root")
	w.child(t, "root", "p", "provider")
	w.shards["root"].admits()
	w.ready(t, "root:p", "root")
	jane := w.person(t, "jane")
	require.Equal(t, "/services/apiexport/provider/e/clusters/*/apis?x=1", jane.echoed(t, "/services/apiexport/root:p/e/clusters/*/apis?x=1").URI, "wildcard requests must be forwarded if there is one shard")

	w.addShard(t, "one").admits()
	w.child(t, "one", "c", "consumer")
	w.awaitIndexed(t, "root:c", "one")
	for path, uri := range map[string]string{
		"/services/apiexport/root:p/e/clusters/root:c/api/v1/x%2Fy":         "/services/apiexport/provider/e/clusters/consumer/api/v1/x%2Fy",
		"/services/apiexport/provider/e/clusters/consumer":                  "/services/apiexport/provider/e/clusters/consumer",
		"/services/initializingworkspaces/root:p:t/clusters/consumer/api":   "/services/initializingworkspaces/provider:t/clusters/consumer/api",
		"/services/apiresourceschema/root:c/clusters/consumer/apis?watch=0": "/services/apiresourceschema/consumer/clusters/consumer/apis?watch=0",
	} {
		got := jane.echoed(t, path)
		require.Equal(t, []string{"one", uri, "jane"}, []string{got.Shard, got.URI, got.Header.Get("X-Remote-User")}, path)
	}
	w.awaitIndexed(t, "provider", "root")
	require.Eventually(t, func() bool { return w.proxy.shards.only() == nil }, timeout, 1)
	for path, want := range map[string]int{
		"/services/apiexport/root:p/e/clusters/*/apis": http.StatusBadRequest,
		"/services/apiexport/root:p/e/cluster/c/apis":  http.StatusBadRequest,
		"/services/apiexport/root:p/e/clusters/c%2Fd":  http.StatusBadRequest,
		"/services/other/root:p/e/clusters/consumer":   http.StatusNotFound,
		"/services/cache/shards/one/clusters/consumer": http.StatusNotFound,
	} {
		jane.fails(t, path, want)
	}
	s := jane.fails(t, "/services/apiexport/root:p/e/clusters/*/apis", http.StatusBadRequest)
	require.Contains(t, s.Message, "use /shards/<name>/services/")
}

// TestVirtualWorkspacesOfOneShard checks that URLs below /shards/<name> are forwarded to that
// shard, and that they do not disclose which shards exist.
func TestVirtualWorkspacesOfOneShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.child(t, "root", "p", "provider")
	w.child(t, "one", "c", "consumer")
	for _, s := range w.shards {
		s.admits("jane")
	}
	w.ready(t, "root:p", "root", "root:c", "one")
	jane, mallory := w.person(t, "jane"), w.person(t, "mallory")
	const all, consumer = "/services/apiexport/provider/e/clusters/*/apis?x=1", "/services/apiexport/provider/e/clusters/consumer/apis?x=1"
	for _, shard := range []string{"root", "one"} {
		got := jane.echoed(t, "/shards/"+shard+"/services/apiexport/root:p/e/clusters/*/apis?x=1")
		require.Equal(t, []string{shard, all}, []string{got.Shard, got.URI})
		got = jane.echoed(t, "/shards/"+shard+"/services/apiexport/provider/e/clusters/root:c/apis?x=1")
		require.Equal(t, []string{"one", consumer}, []string{got.Shard, got.URI}, "the request must be forwarded to the shard of the logical cluster")
	}
	for path, want := range map[string]int{
		"/shards/none" + all: http.StatusForbidden, "/shards/none" + consumer: http.StatusOK,
		"/shards/one/clusters/root/api": http.StatusBadRequest, "/shards/one": http.StatusBadRequest, "/shards/": http.StatusBadRequest, "/shards/one/services/admin/apis": http.StatusBadRequest,
	} {
		jane.want(t, path, want)
	}

	want, text := mallory.get(t, "/shards/none"+all)
	status(t, want, text, http.StatusForbidden)
	for _, shard := range []string{"root", "one"} {
		_, body := mallory.want(t, "/shards/"+shard+all, http.StatusForbidden)
		require.Equal(t, text, body)
	}
}

// TestVirtualWorkspacesNonDisclosure checks that a virtual workspace does not disclose logical clusters without
// accessible objects.
func TestVirtualWorkspacesNonDisclosure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.IndexTimeout = 5 * time.Millisecond // the delay of denied requests
	w.cluster(t, "root", "provider")
	w.cluster(t, "root", "consumer")
	w.cluster(t, "root", "other")
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		shows := strings.Contains(r.URL.Path, "/clusters/consumer") && strings.HasPrefix(r.URL.Path, "/services/apiexport/provider/e/") && r.Header.Get("X-Remote-User") == "jane"
		rw.Header().Set(request.AccessAuthorizedHeader, strconv.FormatBool(shows))
		switch {
		case r.Header.Get("X-Remote-User") != "jane" || strings.HasSuffix(r.URL.Path, "/forbidden"):
			rw.WriteHeader(http.StatusForbidden)
			_, _ = rw.Write([]byte("{}"))
		case strings.HasSuffix(r.URL.Path, "/missing"), strings.HasSuffix(r.URL.Path, "/version"):
			rw.WriteHeader(http.StatusNotFound)
		default:
			_, _ = rw.Write([]byte("{}"))
		}
	})
	w.ready(t, "provider", "root", "consumer", "root", "other", "root")
	jane, mallory := w.person(t, "jane"), w.person(t, "mallory")
	for path, code := range map[string]int{"/apis": http.StatusOK, "/missing": http.StatusNotFound, "/forbidden": http.StatusForbidden} {
		res, body := jane.want(t, "/services/apiexport/provider/e/clusters/consumer"+path, code)
		require.NotContains(t, body, authz.NotPermitted)
		require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader))
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, path := range []string{"/apis", "/missing", "/forbidden", "/api/v1/secrets"} {
			want, text := jane.do(t, method, "/services/apiexport/provider/e/clusters/absent"+path, nil)
			require.Equal(t, http.StatusForbidden, want.StatusCode)
			require.Contains(t, text, authz.NotPermitted)
			want.Header.Del("Date")
			for userInfo, clusters := range map[*person][]string{jane: {"other", "provider"}, mallory: {"consumer", "other", "absent"}} {
				for _, cluster := range clusters {
					for _, granting := range []string{"provider", "absent"} {
						res, body := userInfo.do(t, method, "/services/apiexport/"+granting+"/e/clusters/"+cluster+path, strings.NewReader(map[string]string{http.MethodPost: "{}"}[method]))
						res.Header.Del("Date")
						res.Header.Set("Content-Length", want.Header.Get("Content-Length")) // of the name
						require.Equal(t, want.Header, res.Header, "%s %s %s", granting, cluster, path)
						require.Equal(t, strings.ReplaceAll(text, "jane", "x"), strings.ReplaceAll(strings.ReplaceAll(body, "jane", "x"), "mallory", "x"), "%s %s %s", granting, cluster, path)
					}
				}
			}
		}
	}
}

// TestInstallation checks that only administrators can read resources of the installation, from
// root or, while it is unreachable, from another shard.
func TestInstallation(t *testing.T) {
	w := newWorld(t, "root", "one", "two")
	w.cluster(t, "two", "bbbb")
	w.ready(t, "bbbb", "two")
	const path = "/services/admin/apis/core.kcp.io/v1alpha1/shards?watch=0"
	admin := w.person(t, "admin", request.GroupAdmin)
	got := admin.echoed(t, path)
	require.Equal(t, []string{"root", path, "admin"}, []string{got.Shard, got.URI, got.Header.Get("X-Remote-User")})
	w.shards["root"].kill()
	require.Eventually(t, func() bool {
		res, body := admin.get(t, path)
		return res.StatusCode == http.StatusOK && strings.Contains(body, `"one"`)
	}, timeout, 5*time.Millisecond)

	require.Contains(t, w.person(t, "jane").fails(t, path, http.StatusForbidden).Message, "core.kcp.io")
	res, body := w.withCerts(t).get(t, path)
	require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, res.StatusCode, body)
	w.shards["one"].handle(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusForbidden) })
	res, _ = admin.get(t, path)
	require.Equal(t, http.StatusForbidden, res.StatusCode, "the shard must authorize the request")
}

func (w *world) pending(t *testing.T, name string) {
	t.Helper()
	w.workspace(t, "root", "root", name, "", func(ws *tenancyv1alpha1.Workspace) {
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseScheduling
		ws.Annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey] = `{"username":"owner","groups":["g"]}`
	})
	require.Eventually(t, func() bool {
		_, outcome := w.proxy.shards.index.Lookup("root:" + name)
		return outcome.String() == "Pending"
	}, timeout, time.Millisecond)
}

// TestOwnersWaitForWorkspace checks that requests of the owner or an administrator wait for a workspace without
// logical cluster, and that all others receive the same response as for an unknown one.
func TestOwnersWaitForWorkspace(t *testing.T) {
	w := newWorld(t, "root")
	w.options.IndexTimeout, w.options.WorkspaceReadyTimeout = 20*time.Millisecond, maxReadyTimeout
	w.ready(t)
	w.pending(t, "new")
	owner, admin, jane := w.person(t, "owner"), w.person(t, "kcp-admin", "system:kcp:admin"), w.person(t, "jane")
	responses := []<-chan string{owner.async(t, "/clusters/root:new/api"), admin.async(t, "/clusters/root:new/api")}

	// A client that disconnects frees its slot.
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.proxy.URL()+"/clusters/root:new/api", nil)
	require.NoError(t, err)
	remaining := make(chan error, 1)
	go func() {
		_, err := owner.Do(r)
		remaining <- err
	}()
	w.waits(t, 3)

	unknownRes, unknown := jane.get(t, "/clusters/root:old/api")
	hiddenRes, hidden := jane.want(t, "/clusters/root:new/api", http.StatusForbidden)
	require.Equal(t, strings.ReplaceAll(unknown, "root:old", "root:new"), hidden)
	unknownRes.Header.Del("Date")
	hiddenRes.Header.Del("Date")
	require.Equal(t, unknownRes.Header, hiddenRes.Header)

	cancel()
	require.ErrorIs(t, <-remaining, context.Canceled)
	w.waits(t, 2)
	for _, response := range responses {
		require.Empty(t, response, "requests must wait for the workspace")
	}
	w.child(t, "root", "new", "nnnn")
	for _, response := range responses {
		require.Contains(t, <-response, `"URI":"/clusters/nnnn/api"`)
	}

	// A deleted workspace is like an unknown one.
	w.pending(t, "brief")
	response := owner.async(t, "/clusters/root:brief/api")
	w.waits(t, 1)
	jane.get(t, "/clusters/root:brief/api") // until the delay of users without access has passed
	w.shards["root"].data.Delete(t, kinds.Workspaces.GroupVersionResource, "", "root", "", "brief")
	require.Contains(t, <-response, "Forbidden")
}

func TestWorkspaceReadyTimeout(t *testing.T) {
	w := newWorld(t, "root")
	w.options.IndexTimeout, w.options.WorkspaceReadyTimeout = 10*time.Millisecond, 50*time.Millisecond
	w.ready(t)
	w.pending(t, "stuck")
	start := time.Now()
	res, body := w.person(t, "owner").get(t, "/clusters/root:stuck/api")
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Contains(t, status(t, res, body, http.StatusServiceUnavailable).Message, "not ready")
	require.GreaterOrEqual(t, time.Since(start), w.options.WorkspaceReadyTimeout)
}

// TestReadyTimeoutHeader checks that a shard receives the remaining time to wait for a
// logical cluster that is not ready, before bodies are read, and that clients cannot set it.
func TestReadyTimeoutHeader(t *testing.T) {
	w := newWorld(t, "root")
	w.cluster(t, "root", "born", func(lc *corev1alpha1.LogicalCluster) { lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing })
	w.cluster(t, "root", "grown")
	w.ready(t, "born", "root", "grown", "root")
	authHeaders := make(chan string, 10)
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		authHeaders <- r.Method + " " + r.Header.Get(request.ReadyTimeoutHeader)
		rw.Header().Set(request.AccessAuthorizedHeader, "true")
		rw.Header().Set("Retry-After", "1")
		rw.WriteHeader(http.StatusServiceUnavailable)
	})
	owner := w.person(t, "owner")
	res, _ := owner.want(t, "/clusters/born/api", http.StatusServiceUnavailable, request.ReadyTimeoutHeader, "1h")
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	filtered := func(method string) {
		t.Helper()
		verb, text, _ := strings.Cut(<-authHeaders, " ")
		require.Equal(t, method, verb)
		remaining, err := time.ParseDuration(text)
		require.NoError(t, err)
		require.LessOrEqual(t, remaining, w.options.WorkspaceReadyTimeout)
		require.Positive(t, remaining)
	}
	filtered(http.MethodGet)
	w.proxy.router.accessCache.Remove(accessKeyOf(namedUser("owner"), "born", ""))
	res, _ = owner.do(t, http.MethodPost, "/clusters/born/api", strings.NewReader("a body"))
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	filtered(http.MethodGet)
	filtered(http.MethodPost)
	owner.get(t, "/clusters/grown/api", request.ReadyTimeoutHeader, "1h")
	require.Equal(t, "GET ", <-authHeaders)
}
