package frontproxy

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/lifecycletest"
)

// status checks that a response is an error as Kubernetes clients expect it.
func status(t testing.TB, res *http.Response, body string, code int) metav1.Status {
	t.Helper()
	require.Equal(t, code, res.StatusCode, body)
	require.Equal(t, "application/json", res.Header.Get("Content-Type"), body)
	var s metav1.Status
	require.NoError(t, json.Unmarshal([]byte(body), &s), body)
	require.Equal(t, "Status", s.Kind)
	require.Equal(t, "v1", s.APIVersion)
	require.Equal(t, metav1.StatusFailure, s.Status)
	require.EqualValues(t, code, s.Code)
	require.NotEmpty(t, s.Reason)
	return s
}

// requireHeaders checks headers: names, each with its only value, or an empty string if there must be none.
func requireHeaders(t testing.TB, header http.Header, want ...string) {
	t.Helper()
	for pair := range slices.Chunk(want, 2) {
		if pair[1] == "" {
			require.NotContains(t, header, pair[0])
			continue
		}
		require.Equal(t, []string{pair[1]}, header[pair[0]], pair[0])
	}
}

// fails sends a GET, and checks that the response is an error with a code.
func (p *person) fails(t testing.TB, path string, code int, header ...string) metav1.Status {
	t.Helper()
	res, body := p.get(t, path, header...)
	return status(t, res, body, code)
}

func TestFailedStart(t *testing.T) {
	w := newWorld(t, "root")
	options := func(port int) *Options {
		o := *w.options
		o.Serving.SecurePort = port
		return &o
	}
	start := func(o *Options) (lifecycletest.Server, error) { return NewFrontProxy(t.Context(), o.Complete()) }
	mistakes := map[string]lifecycletest.Mistake[Options]{}
	for flag, set := range map[string]func(o *Options, file string){
		"--tls-cert-file":          func(o *Options, file string) { o.Serving.TLSCertFile = file },
		"--mapping-file":           func(o *Options, file string) { o.MappingFile = file },
		"--proxy-client-cert-file": func(o *Options, file string) { o.ProxyClientCertFile = file },
		"--shard-ca-file":          func(o *Options, file string) { o.ShardCAFile = file },
		"--root-kubeconfig":        func(o *Options, file string) { o.RootKubeconfig = file },
		"--shard-client-cert-file": func(o *Options, file string) { o.ShardClientCertFile = file },
		"--client-ca-file":         func(o *Options, file string) { o.Authentication.ClientCAFile = file },
	} {
		mistakes[flag+", garbage"] = lifecycletest.Mistake[Options]{Make: set, Want: flag}
		missing := func(o *Options, _ string) { set(o, "/nowhere") }
		mistakes[flag+", missing"] = lifecycletest.Mistake[Options]{Make: missing, Want: flag}
	}
	lifecycletest.HalfStarted(t, options, start, mistakes)
}

func TestRouting(t *testing.T) {
	w := newWorld(t, "root", "one")
	w.workspace(t, "root", "root", "a", "aaaa")
	w.workspace(t, "one", "aaaa", "b", "bbbb")
	w.cluster(t, "one", "aaaa")
	w.cluster(t, "root", "bbbb")
	w.ready(t, "root:a:b", "root")
	admin := w.person(t, "kcp-admin", "system:kcp:admin")

	for path, want := range map[string]seen{
		"/clusters/root/api":                   {Shard: "root", URI: "/clusters/root/api"},
		"/clusters/root:a/api":                 {Shard: "one", URI: "/clusters/aaaa/api"},
		"/clusters/aaaa/api":                   {Shard: "one", URI: "/clusters/aaaa/api"},
		"/clusters/root:a:b/api":               {Shard: "root", URI: "/clusters/bbbb/api"},
		"/clusters/aaaa:b/api":                 {Shard: "root", URI: "/clusters/bbbb/api"},
		"/clusters/root":                       {Shard: "root", URI: "/clusters/root"},
		"/clusters/root/":                      {Shard: "root", URI: "/clusters/root/"},
		"/clusters/root%3Aa/api":               {Shard: "one", URI: "/clusters/aaaa/api"},
		"/clusters/root/a%2Fb%20c/%25?x=1;y&z": {Shard: "root", URI: "/clusters/root/a%2Fb%20c/%25?x=1;y&z"},
		"/clusters/root/a//b/?x=%2F+a&x=":      {Shard: "root", URI: "/clusters/root/a//b/?x=%2F+a&x="},
		"/clusters/root/clusters/aaaa/api":     {Shard: "root", URI: "/clusters/root/clusters/aaaa/api"},
	} {
		got := admin.echoed(t, path)
		require.Equal(t, []string{want.Shard, want.URI}, []string{got.Shard, got.URI}, path)
		require.Equal(t, []string{w.shards[want.Shard].addr, "proxy", "HTTP/2.0"}, []string{got.Host, got.Cert, got.Proto})
	}

	big := strings.Repeat("0123456789", 1<<17)
	res, body := admin.do(t, http.MethodPost, "/clusters/root/api?dryRun=All", strings.NewReader(big), "Content-Type", "text/x")
	require.Equal(t, http.StatusOK, res.StatusCode)
	var got seen
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	require.Equal(t, big, got.Body)
	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, "text/x", got.Header.Get("Content-Type"))
}

func TestUsers(t *testing.T) {
	w := newWorld(t, "root")
	w.options.Authentication.DropGroups = []string{"secret-group"}
	w.ready(t, "root", "root")

	jane := w.person(t, "jane", "devs", "secret-group", "ops").http1(t)
	got := jane.echoed(t, "/clusters/root/api",
		"X-Remote-User", "root", "X-Remote-Group", "system:masters", "x-remote-extra-scopes", "all", "X-Remote-Uid", "0",
		"X-Forwarded-For", "1.2.3.4", "Connection", "X-Hop", "X-Hop", "removed", "Impersonate-User", "joe", "Impersonate-Group", "g", "X-Other", "kept")
	require.ElementsMatch(t, []string{"devs", "ops", "system:authenticated"}, got.Header["X-Remote-Group"])
	for key := range got.Header {
		if strings.HasPrefix(key, "X-Remote-Extra-") {
			require.Contains(t, strings.ToLower(key), "credential-id", "only extra attributes of the authenticator must be forwarded")
		}
	}
	requireHeaders(t, got.Header, "X-Remote-User", "jane", "X-Remote-Uid", "", "X-Forwarded-For", "127.0.0.1",
		"X-Forwarded-Proto", "https", "X-Forwarded-Host", strings.TrimPrefix(w.proxy.URL(), "https://"),
		"Impersonate-User", "joe", "Impersonate-Group", "g", "X-Other", "kept", "X-Hop", "")

	token := w.withCerts(t)
	token.token = "user-2-token"
	got = token.echoed(t, "/clusters/root/api")
	require.Equal(t, []string{"Bearer user-2-token"}, got.Header["Authorization"], "shards accept the tokens of the development cluster themselves")
	for key := range got.Header {
		require.False(t, strings.HasPrefix(key, "X-Remote-"), key)
	}
	jane.token = "admin-token"
	got = jane.echoed(t, "/clusters/root/api")
	requireHeaders(t, got.Header, "X-Remote-User", "jane", "Authorization", "") // a certificate comes before a token

	webSocket := func(token string) []string {
		protocol := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
		return []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Protocol", protocol + ", v4.channel.k8s.io"}
	}
	browser := w.withCerts(t).http1(t)
	got = browser.echoed(t, "/clusters/root/api", webSocket("user-2-token")...)
	requireHeaders(t, got.Header, "Authorization", "Bearer user-2-token", "Sec-Websocket-Protocol", "v4.channel.k8s.io")
	browser.want(t, "/clusters/root/api", http.StatusUnauthorized, webSocket("wrong-token")...)
	got = w.person(t, "jane").http1(t).echoed(t, "/clusters/root/api", webSocket("any-token")...)
	// Tokens are not forwarded, also if they were not used.
	requireHeaders(t, got.Header, "X-Remote-User", "jane", "Sec-Websocket-Protocol", "v4.channel.k8s.io")
}

func TestStatusCodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.child(t, "one", "down", "dddd", markUnavailable)
	w.workspace(t, "root", "root", "coming", "")
	w.cluster(t, "root", "system:admin")
	w.ready(t, "root:down", "one")
	jane := w.person(t, "jane", "devs")

	for _, path := range []string{
		"/clusters/unknown/api/v1/configmaps", "/clusters/root:unknown/api", "/clusters/root:coming/api", "/clusters/*/api/v1/configmaps",
		"/clusters/system:admin/api", "/clusters/UPPER/api", "/clusters//api", "/clusters/", "/clusters/root%2Fx/api", "/clusters/%2A/api",
		"/clusters/root:/api", "/clusters/..%2Froot/api", "/clusters/root%00/api",
	} {
		s := jane.fails(t, path, http.StatusForbidden)
		require.Equal(t, metav1.StatusReasonForbidden, s.Reason)
		require.Contains(t, s.Message, authz.NotPermitted, path)
		require.Contains(t, s.Message, `"jane"`, path)
	}
	res, body := jane.get(t, "/clusters/root:down/api")
	s := status(t, res, body, http.StatusServiceUnavailable)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.EqualValues(t, 1, s.Details.RetryAfterSeconds)

	for _, path := range []string{"/clusters/root/api", "/clusters/unknown/api"} {
		large := strings.Repeat("x", http.DefaultMaxHeaderBytes-12<<10)
		s := jane.fails(t, path, http.StatusRequestHeaderFieldsTooLarge, "X-Other", large)
		require.Contains(t, s.Message, "reduce the number of groups", "headers that fit here may be too large in the forwarded request")
	}
	for _, path := range []string{"/", "/api", "/apis/x", "/clusters", "/clust%65rs/root/api", "/metrics/x", "/services/apiexports/x", "/services/", "/version", "/readyzz"} {
		jane.fails(t, path, http.StatusNotFound)
	}

	foreign := w.withCerts(t, w.foreigner.pair(t, "jane", "system:masters"))
	anonymous := w.withCerts(t)
	badToken := w.withCerts(t)
	badToken.token = "nonsense"
	for _, p := range []*person{anonymous, badToken, foreign} {
		for _, path := range []string{"/clusters/root/api", "/clusters/unknown/api", "/metrics", "/nothing"} {
			p.fails(t, path, http.StatusUnauthorized, "X-Remote-User", "admin", "X-Remote-Group", "system:masters")
		}
		for _, path := range []string{"/readyz", "/livez", "/healthz", "/readyz?verbose"} {
			p.want(t, path, http.StatusOK)
		}
	}

	for _, path := range []string{"/debug/pprof/", "/debug/pprof/profile", "/debug/pprof/cmdline"} {
		jane.fails(t, path, http.StatusForbidden)
	}
	for _, group := range []string{"system:masters", "system:kcp:admin"} {
		_, body = w.person(t, "admin", group).want(t, "/metrics", http.StatusOK)
		require.Contains(t, body, `shardplane_frontproxy_requests_total{code="403",shard=""}`)
		require.Contains(t, body, `shardplane_frontproxy_index_entries{kind="logicalclusters"} 3`)
		_, body = w.person(t, "admin", group).want(t, "/debug/pprof/goroutine?debug=1", http.StatusOK)
		require.Contains(t, body, "goroutine profile")
	}
}

// TestMetricsReaders checks that the access of other users than administrators is verified in root, with a cache.
func TestMetricsReaders(t *testing.T) {
	w := newWorld(t, "root")
	w.run(t)
	var reviews atomic.Int32
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if r.URL.Path != "/clusters/root/apis/authorization.k8s.io/v1/subjectaccessreviews" || r.Header.Get("X-Kcp-Internal-Deep-SubjectAccessReview") != "true" ||
			json.NewDecoder(r.Body).Decode(review) != nil || review.Spec.NonResourceAttributes == nil {
			http.Error(rw, "unexpected request", http.StatusBadRequest)
			return
		}
		reviews.Add(1)
		about := review.Spec.NonResourceAttributes
		if review.Spec.User == "broken" {
			http.Error(rw, "review failed", http.StatusInternalServerError)
			return
		}
		review.Status.Allowed = about.Path == "/metrics" && about.Verb == "get" && slices.Contains(review.Spec.Groups, "readers")
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(rw).Encode(review)
	})
	prometheus, jane := w.person(t, "prometheus", "readers"), w.person(t, "jane", "others")
	for range 3 {
		_, body := prometheus.want(t, "/metrics", http.StatusOK)
		require.Contains(t, body, "# TYPE")
	}
	require.EqualValues(t, 1, reviews.Load(), "the decision must be cached")
	for range 3 {
		jane.fails(t, "/metrics", http.StatusForbidden)
	}
	require.EqualValues(t, 2, reviews.Load())
	w.person(t, "admin", "system:kcp:admin").want(t, "/metrics", http.StatusOK)
	require.EqualValues(t, 2, reviews.Load(), "administrators must be authorized without a review")
	w.person(t, "broken", "readers").fails(t, "/metrics", http.StatusServiceUnavailable)
	prometheus.fails(t, "/debug/pprof/goroutine", http.StatusForbidden)

	for _, cluster := range []string{"root", "unknown"} {
		for _, path := range []string{"/metrics", "/metrics/slis", "/%6detrics", "/debug/pprof/heap"} {
			for _, group := range []string{"system:masters", "others"} {
				w.person(t, "x", group).fails(t, "/clusters/"+cluster+path, http.StatusNotImplemented)
			}
		}
	}
}

// TestMetricsOfTwoServers checks that servers in the same process have separate metrics, together
// with those of upstream packages.
func TestMetricsOfTwoServers(t *testing.T) {
	busy, idle := newWorld(t, "root"), newWorld(t, "root")
	busy.run(t)
	idle.run(t)
	const refused = `shardplane_frontproxy_requests_total{code="404",shard=""}`
	busy.person(t, "jane").fails(t, "/nothing", http.StatusNotFound)
	for w, count := range map[*world]int{busy: 1, idle: 0} {
		_, body := w.person(t, "admin", "system:kcp:admin").want(t, "/metrics", http.StatusOK)
		require.Equal(t, count, strings.Count(body, refused))
		for _, line := range []string{"# TYPE go_goroutines gauge", "# HELP shardplane_frontproxy_index_entries [ALPHA] "} {
			require.Equal(t, 1, strings.Count(body, line), line)
		}
	}
}

func TestUnknownAndForbiddenLookTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.cluster(t, "root", "hidden")
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "rbac") {
			rw.Header().Set(request.AccessAuthorizedHeader, "true")
			rw.Header().Set("Audit-Id", "x")
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusForbidden)
			_, _ = rw.Write([]byte(`{"message":"plain denial"}`))
			return
		}
		rw.Header().Set("Audit-Id", "disclosed")
		rw.WriteHeader(http.StatusForbidden)
		_, _ = rw.Write([]byte("k8s\x00 message of the shard: " + authz.NotPermitted))
	})
	w.ready(t, "hidden", "root")
	jane := w.person(t, "jane")

	jane.isConcealed(t, "hidden", "/api/v1/configmaps", http.MethodGet, http.MethodHead, http.MethodPost, "ODD")
	_, body := jane.want(t, "/clusters/hidden/rbac", http.StatusForbidden)
	require.JSONEq(t, `{"message":"plain denial"}`, body)
}

func TestWaitsForNewWorkspaces(t *testing.T) {
	w := newWorld(t, "root", "one")
	w.options.IndexTimeout = maxIndexTimeout
	w.ready(t, "root", "root")
	jane := w.person(t, "jane")
	response := jane.async(t, "/clusters/root:new/api")
	w.waits(t, 1)
	w.child(t, "one", "new", "nnnn")
	require.Contains(t, receive(t, response), "/clusters/nnnn/api")
	w.waits(t, 0)
}

// waits waits until there are n pending requests.
func (w *world) waits(t testing.TB, n int64) {
	t.Helper()
	require.Eventually(t, func() bool { return w.proxy.router.resolver.slots.Held() == n }, timeout, time.Millisecond)
}

// nowhere is an address without listener.
const nowhere = "https://127.0.0.1:1"

func TestShardsAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.cluster(t, "one", "aaaa")
	for name, garbage := range map[string]string{"empty": "", "plain": "http://127.0.0.1:1", "odd": "https://%zz"} {
		w.announce(t, name, garbage)
	}
	w.ready(t, "aaaa", "one")
	admin := w.person(t, "admin", "system:masters")
	w.becomesComplete(t) // unusable Shard objects do not matter

	w.addShard(t, "two")
	w.cluster(t, "two", "tttt")
	w.awaitIndexed(t, "tttt", "two")
	require.Equal(t, "two", admin.echoed(t, "/clusters/tttt/api").Shard)

	// The shard moves. Workspaces that do not exist at the new address are removed.
	w.cluster(t, "two", "stays")
	w.workspace(t, "two", "tttt", "child", "stays")
	w.awaitIndexed(t, "stays", "two")
	w.awaitIndexed(t, "tttt:child", "two")
	moved := &fakeShard{name: "two", world: w, data: w.addShard(t, "spare").data}
	moved.handle(moved.echo)
	moved.start(t)
	t.Cleanup(moved.kill)
	w.cluster(t, "spare", "stays", func(lc *corev1alpha1.LogicalCluster) {
		lc.Annotations[corev1alpha1.LogicalClusterShardAnnotationKey] = "two"
	})
	// It is unreachable in between.
	for _, url := range []string{nowhere, moved.url()} {
		w.announce(t, "two", url)
		require.Eventually(t, func() bool {
			target, _ := w.proxy.shards.index.Lookup("stays")
			return target.URL == url
		}, timeout, 5*time.Millisecond)
	}
	w.awaitIndexed(t, "tttt", "")
	w.awaitIndexed(t, "tttt:child", "")

	w.withdraw(t, "one")
	w.awaitIndexed(t, "aaaa", "")
	admin.fails(t, "/clusters/aaaa/api", http.StatusForbidden)
	require.Equal(t, "root", admin.echoed(t, "/clusters/root/api").Shard)
}

func TestDeadShard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.cluster(t, "one", "aaaa")
	w.ready(t, "aaaa", "one")
	admin := w.person(t, "admin", "system:masters")
	require.Equal(t, "one", admin.echoed(t, "/clusters/aaaa/api").Shard)

	w.shards["one"].kill()
	res, body := admin.get(t, "/clusters/aaaa/api")
	for deadline := time.Now().Add(timeout); res.StatusCode == http.StatusBadGateway && time.Now().Before(deadline); {
		res, body = admin.get(t, "/clusters/aaaa/api") // the connection had just failed
	}
	status(t, res, body, http.StatusServiceUnavailable)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Equal(t, "root", admin.echoed(t, "/clusters/root/api").Shard, "other shards must still be served")
	unknown := admin.fails(t, "/clusters/unknown/api", http.StatusServiceUnavailable)
	require.Contains(t, unknown.Message, "is unreachable", "the workspace may exist on the unreachable shard")
	require.NoError(t, w.proxy.health.ready())
	warns := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			res, body = w.withCerts(t).get(t, "/readyz?verbose")
			return res.StatusCode == http.StatusOK && strings.Contains(body, "[!]"+text)
		}, timeout, 5*time.Millisecond)
	}
	warns("shards: 1 of 2: Unreachable")

	w.shards["one"].data.Fail(http.StatusForbidden)
	w.shards["one"].start(t)
	warns("shards: 1 of 2: Rejecting the certificate")
	w.shards["one"].data.Fail(0)
	require.Equal(t, "one", admin.echoed(t, "/clusters/aaaa/api").Shard)
	w.cluster(t, "one", "late")
	w.awaitIndexed(t, "late", "one")

	// A front-proxy that starts while a shard is unreachable is ready, but returns 503 for unknown workspaces.
	w.stop()
	w.shards["one"].kill()
	w.ready(t, "root", "root")
	admin.fails(t, "/clusters/aaaa/api", http.StatusServiceUnavailable)
	w.shards["one"].start(t)
	w.awaitIndexed(t, "aaaa", "one")
	w.becomesComplete(t)
	admin.fails(t, "/clusters/unknown/api", http.StatusForbidden)
}

func TestNotReadyWithoutRoot(t *testing.T) {
	w := newWorld(t, "root")
	w.shards["root"].kill()
	w.run(t)
	require.Eventually(t, func() bool {
		err := w.proxy.health.ready()
		return err != nil && strings.Contains(err.Error(), "connection refused")
	}, timeout, 5*time.Millisecond)
	anonymous := w.withCerts(t)
	_, body := anonymous.want(t, "/readyz?verbose", http.StatusInternalServerError)
	require.Contains(t, body, "[!]root: the Shard objects cannot be read")
	anonymous.want(t, "/livez", http.StatusOK)
	w.shards["root"].start(t)
	require.Eventually(t, func() bool { return w.proxy.health.ready() == nil }, timeout, 5*time.Millisecond)
}
