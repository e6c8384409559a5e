package frontproxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestViewsAreForwarded holds that requests through a view go to the shard of the logical
// cluster that they are to see, by names, and that a view of all of them is for one shard.
func TestViewsAreForwarded(t *testing.T) {
	w := newWorld(t, "root")
	w.cluster(t, "root", "provider")
	w.workspace(t, "root", "root", "p", "provider")
	entered := func(s *fakeShard) {
		s.handle(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set(request.AccessAuthorizedHeader, "true")
			s.echo(rw, r)
		})
	}
	entered(w.shards["root"])
	w.ready(t)
	w.knows(t, "root:p", "root")
	jane := w.person(t, "jane")
	require.Equal(t, "/services/apiexport/provider/e/clusters/*/apis?x=1", jane.echoed(t, "/services/apiexport/root:p/e/clusters/*/apis?x=1").URI, "there is one shard")

	entered(w.addShard(t, "one"))
	w.cluster(t, "one", "consumer")
	w.workspace(t, "root", "root", "c", "consumer")
	w.knows(t, "root:c", "one")
	for path, uri := range map[string]string{
		"/services/apiexport/root:p/e/clusters/root:c/api/v1/x%2Fy":         "/services/apiexport/provider/e/clusters/consumer/api/v1/x%2Fy",
		"/services/apiexport/provider/e/clusters/consumer":                  "/services/apiexport/provider/e/clusters/consumer",
		"/services/initializingworkspaces/root:p:t/clusters/consumer/api":   "/services/initializingworkspaces/provider:t/clusters/consumer/api",
		"/services/apiresourceschema/root:c/clusters/consumer/apis?watch=0": "/services/apiresourceschema/consumer/clusters/consumer/apis?watch=0",
	} {
		got := jane.echoed(t, path)
		require.Equal(t, "one", got.Shard, path)
		require.Equal(t, uri, got.URI, path)
		require.Equal(t, "jane", got.Header.Get("X-Remote-User"))
	}
	w.knows(t, "provider", "root")
	require.Eventually(t, func() bool { return w.proxy.shards.only() == nil }, timeout, 1)
	for path, want := range map[string]int{
		"/services/apiexport/root:p/e/clusters/*/apis": http.StatusBadRequest,
		"/services/apiexport/root:p/e/cluster/c/apis":  http.StatusBadRequest,
		"/services/apiexport/root:p/e/clusters/c%2Fd":  http.StatusBadRequest,
		"/services/other/root:p/e/clusters/consumer":   http.StatusNotFound,
		"/services/cache/shards/one/clusters/consumer": http.StatusNotFound,
	} {
		res, body := jane.get(t, path)
		status(t, res, body, want)
	}
	res, body := jane.get(t, "/services/apiexport/root:p/e/clusters/*/apis")
	require.Contains(t, status(t, res, body, http.StatusBadRequest).Message, "use /shards/<name>/services/")
}

// TestVirtualWorkspacesOfOneShard checks that a URL below /shards/<name> leads to the virtual
// workspaces of that shard, and that it does not disclose which shards there are.
func TestVirtualWorkspacesOfOneShard(t *testing.T) {
	w := newWorld(t, "root", "one")
	w.cluster(t, "root", "provider")
	w.workspace(t, "root", "root", "p", "provider")
	w.cluster(t, "one", "consumer")
	w.workspace(t, "root", "root", "c", "consumer")
	for _, s := range w.shards {
		s.handle(func(rw http.ResponseWriter, r *http.Request) {
			may := r.Header.Get("X-Remote-User") == "jane"
			rw.Header().Set(request.AccessAuthorizedHeader, map[bool]string{true: "true", false: "false"}[may])
			if !may {
				rw.WriteHeader(http.StatusForbidden)
			}
			s.echo(rw, r)
		})
	}
	w.ready(t)
	w.knows(t, "root:p", "root")
	w.knows(t, "root:c", "one")
	jane, mallory := w.person(t, "jane"), w.person(t, "mallory")
	const all, consumer = "/services/apiexport/provider/e/clusters/*/apis?x=1", "/services/apiexport/provider/e/clusters/consumer/apis?x=1"
	for _, shard := range []string{"root", "one"} {
		got := jane.echoed(t, "/shards/"+shard+"/services/apiexport/root:p/e/clusters/*/apis?x=1")
		require.Equal(t, []string{shard, all}, []string{got.Shard, got.URI})
		got = jane.echoed(t, "/shards/"+shard+"/services/apiexport/provider/e/clusters/root:c/apis?x=1")
		require.Equal(t, []string{"one", consumer}, []string{got.Shard, got.URI}, "one logical cluster is on its shard")
	}
	for path, want := range map[string]int{
		"/shards/none" + all: http.StatusForbidden, "/shards/none" + consumer: http.StatusOK,
		"/shards/one/clusters/root/api": http.StatusBadRequest, "/shards/one": http.StatusBadRequest, "/shards/": http.StatusBadRequest, "/shards/one/services/admin/apis": http.StatusBadRequest,
	} {
		res, body := jane.get(t, path)
		require.Equal(t, want, res.StatusCode, "%s: %s", path, body)
	}

	want, text := mallory.get(t, "/shards/none"+all)
	status(t, want, text, http.StatusForbidden)
	for _, shard := range []string{"root", "one"} {
		res, body := mallory.get(t, "/shards/"+shard+all)
		require.Equal(t, want.StatusCode, res.StatusCode)
		require.Equal(t, text, body)
	}
}

// TestViewsTellNothing holds that whoever may open a view learns through it of no logical
// cluster that it shows nothing of, whatever the shard answers.
func TestViewsTellNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.IndexTimeout = 20 * time.Millisecond // each denial waits for it
	w.cluster(t, "root", "provider")
	w.cluster(t, "root", "consumer")
	w.cluster(t, "root", "other")
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		shows := strings.Contains(r.URL.Path, "/clusters/consumer") && strings.HasPrefix(r.URL.Path, "/services/apiexport/provider/e/") && r.Header.Get("X-Remote-User") == "jane"
		rw.Header().Set(request.AccessAuthorizedHeader, map[bool]string{true: "true", false: "false"}[shows])
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
	w.ready(t)
	for _, name := range []string{"provider", "consumer", "other"} {
		w.knows(t, name, "root")
	}
	jane, mallory := w.person(t, "jane"), w.person(t, "mallory")
	for path, code := range map[string]int{"/apis": http.StatusOK, "/missing": http.StatusNotFound, "/forbidden": http.StatusForbidden} {
		res, body := jane.get(t, "/services/apiexport/provider/e/clusters/consumer"+path)
		require.Equal(t, code, res.StatusCode)
		require.NotContains(t, body, authz.NotPermitted)
		require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader))
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, path := range []string{"/apis", "/missing", "/forbidden", "/api/v1/secrets"} {
			want, text := jane.do(t, method, "/services/apiexport/provider/e/clusters/absent"+path, nil)
			require.Equal(t, http.StatusForbidden, want.StatusCode)
			require.Contains(t, text, authz.NotPermitted)
			want.Header.Del("Date")
			for who, clusters := range map[*person][]string{jane: {"other", "provider"}, mallory: {"consumer", "other", "absent"}} {
				for _, cluster := range clusters {
					for _, granting := range []string{"provider", "absent"} {
						res, body := who.do(t, method, "/services/apiexport/"+granting+"/e/clusters/"+cluster+path, strings.NewReader(map[string]string{http.MethodPost: "{}"}[method]))
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

// TestInstallation has administrators ask for what is of the whole installation, of root and,
// while root does not answer, of another shard; and nobody else.
func TestInstallation(t *testing.T) {
	w := newWorld(t, "root")
	w.addShard(t, "one")
	w.addShard(t, "two")
	w.cluster(t, "two", "bbbb")
	w.ready(t)
	w.knows(t, "bbbb", "two")
	const path = "/services/admin/apis/core.kcp.io/v1alpha1/shards?watch=0"
	admin := w.person(t, "admin", request.GroupAdmin)
	got := admin.echoed(t, path)
	require.Equal(t, "root", got.Shard)
	require.Equal(t, path, got.URI)
	require.Equal(t, "admin", got.Header.Get("X-Remote-User"))
	w.shards["root"].kill()
	require.Eventually(t, func() bool {
		res, body := admin.get(t, path)
		return res.StatusCode == http.StatusOK && strings.Contains(body, `"one"`)
	}, timeout, 5*time.Millisecond)

	res, body := w.person(t, "jane").get(t, path)
	status(t, res, body, http.StatusForbidden)
	require.Contains(t, body, "core.kcp.io")
	res, body = w.withCerts(t).get(t, path)
	require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, res.StatusCode, body)
	w.shards["one"].handle(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusForbidden) })
	res, _ = admin.get(t, path)
	require.Equal(t, http.StatusForbidden, res.StatusCode, "the shard has the last word")
}
