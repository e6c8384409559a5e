package frontproxy

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
)

// awkward are responses of a shard without the access header. The key is the request path.
var awkward = map[string]http.HandlerFunc{
	"/bad":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) },
	"/timeout": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGatewayTimeout) },
	"/broken":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
}

// TestNonDisclosure checks that responses of a shard before authorization, or in an invalid form, are equal
// to those for workspaces that do not exist, and that authorized users receive them unchanged.
func TestNonDisclosure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.IndexTimeout = 20 * time.Millisecond
	w.child(t, "root", "down", "hidden", markUnavailable)
	w.cluster(t, "root", "off", func(lc *corev1alpha1.LogicalCluster) { lc.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable })
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		rest := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/'):]
		rw.Header().Set(request.AccessAuthorizedHeader, strconv.FormatBool(r.Header.Get("X-Remote-User") == "owner"))
		switch response := awkward[rest]; {
		case response != nil:
			response(rw, r)
		case rest == "/inner":
			rw.WriteHeader(http.StatusNotFound)
		case r.Header.Get("X-Remote-User") == "jane":
			rw.WriteHeader(http.StatusForbidden)
			_, _ = rw.Write([]byte(authz.NotPermitted))
		}
	})
	w.ready(t, "root:down", "root", "off", "root")
	jane, owner := w.person(t, "jane"), w.person(t, "owner")
	methods := []string{http.MethodGet, http.MethodHead, http.MethodPost}
	for path, response := range awkward {
		t.Run(path, func(t *testing.T) {
			jane.isConcealed(t, "hidden", path, methods...)
			res, body := owner.get(t, "/clusters/hidden"+path)
			if path == "/broken" {
				require.Equal(t, http.StatusBadGateway, res.StatusCode)
				return
			}
			recorder := httptest.NewRecorder()
			response(recorder, nil)
			require.Equal(t, recorder.Code, res.StatusCode)
			require.Equal(t, recorder.Body.String(), body)
		})
	}
	t.Run("unavailable", func(t *testing.T) {
		for _, cluster := range []string{"root:down", "off"} {
			jane.isConcealed(t, cluster, "/api", methods...)
			owner.want(t, "/clusters/"+cluster+"/api", http.StatusServiceUnavailable)
		}
	})
	t.Run("invalid protocol", func(t *testing.T) {
		for _, path := range []string{"/clusters/absent/api", "/clusters/hidden/api"} {
			jane.http1(t).fails(t, path, http.StatusBadRequest, "Connection", "Upgrade", "Upgrade", "\x80")
		}
	})
	t.Run("authorized", func(t *testing.T) {
		res, _ := owner.want(t, "/clusters/hidden/inner", http.StatusNotFound)
		require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader), "the header must only be sent between servers")
	})
}

// isConcealed checks that the response for a logical cluster is the same as for one that does not exist, and that both
// take as long.
func (p *person) isConcealed(t testing.TB, cluster, path string, methods ...string) {
	t.Helper()
	send := func(method, cluster string) (body string, header http.Header) {
		start := time.Now()
		res, body := p.do(t, method, "/clusters/"+cluster+path, nil)
		require.GreaterOrEqual(t, time.Since(start), p.world.options.IndexTimeout, method)
		require.Equal(t, http.StatusForbidden, res.StatusCode, method)
		res.Header.Del("Date")
		return body, res.Header
	}
	for _, method := range methods {
		wantBody, wantHeader := send(method, "absent")
		body, header := send(method, cluster)
		require.Equal(t, wantBody, body, method)
		require.Equal(t, wantHeader, header, method)
	}
}

// TestAccessHeader checks that the access header of a shard takes precedence, and how many
// requests to the shard each response causes.
func TestAccessHeader(t *testing.T) {
	w := newWorld(t, "root")
	w.options.IndexTimeout = time.Millisecond
	w.cluster(t, "root", "hidden")
	var requests atomic.Int32
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		// /<status>/<access header>/<text>
		parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/clusters/hidden/"), "/", 3)
		authorized := strconv.FormatBool(r.Header.Get("X-Remote-User") == "owner")
		if len(parts) < 3 { // access check of the front-proxy
			rw.Header().Set(request.AccessAuthorizedHeader, authorized)
			rw.WriteHeader(http.StatusForbidden)
			return
		}
		rw.Header().Set(request.AccessAuthorizedHeader, parts[1])
		code, _ := strconv.Atoi(parts[0])
		rw.WriteHeader(code)
		_, _ = rw.Write([]byte(parts[2]))
	})
	w.ready(t, "hidden", "root")
	_, unknown := w.person(t, "jane").get(t, "/clusters/absent/api")
	for _, tc := range []struct {
		user, path string
		code       int
		concealed  bool
		requests   int32
	}{
		{"jane", "/403/false/words", 403, true, 1},
		{"jane", "/403/true/" + authz.NotPermitted, 403, false, 1},
		{"owner", "/403/true/denied", 403, false, 1},
		{"owner", "/429/true/full", 429, false, 1},
		{"jane", "/504/false/late", 403, true, 2},
		{"owner", "/504/false/late", 504, false, 2},
		{"jane", "/200/false/fine", 200, false, 1},
	} {
		requests.Store(0)
		res, body := w.person(t, tc.user).get(t, "/clusters/hidden"+tc.path)
		require.Equal(t, tc.code, res.StatusCode, "%+v", tc)
		require.Equal(t, tc.requests, requests.Load(), "%+v", tc)
		require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader), "the header must only be sent between servers")
		if tc.concealed {
			require.Contains(t, body, authz.NotPermittedReason)
			require.Equal(t, strings.ReplaceAll(unknown, "/api", strings.ReplaceAll(tc.path, "%20", " ")), body)
		} else {
			require.True(t, strings.HasSuffix(tc.path, body), body)
		}
	}
}

// TestExpectContinue checks that only the shard requests a body with "Expect:
// 100-continue", and therefore not without access.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.cluster(t, "root", "hidden")
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Remote-User") == "owner" {
			w.shards["root"].echo(rw, r)
			return
		}
		rw.WriteHeader(http.StatusForbidden)
		_, _ = rw.Write([]byte(authz.NotPermitted))
	})
	w.ready(t, "hidden", "root")
	for _, tc := range []struct {
		user, path string
		requested  bool
	}{
		{"jane", "/clusters/absent/x", false},
		{"jane", "/clusters/hidden/x", false},
		{"owner", "/clusters/hidden/x", true},
	} {
		p := w.person(t, tc.user).http1(t)
		p.Transport.(*http.Transport).ExpectContinueTimeout = timeout
		body := &offered{from: strings.NewReader("the body")}
		res, text := p.do(t, http.MethodPost, tc.path, body, "Expect", "100-continue")
		require.Equal(t, tc.requested, body.taken.Load(), "%+v: %s", tc, text)
		require.Equal(t, tc.requested, res.StatusCode == http.StatusOK)
	}
}

// offered is a body that records whether it was read.
type offered struct {
	from  *strings.Reader
	taken atomic.Bool
}

func (o *offered) Read(p []byte) (int, error) {
	o.taken.Store(true)
	return o.from.Read(p)
}

// TestLateDenials checks that after a shard has denied a request later than --index-timeout,
// requests for unknown workspaces are denied equally late.
func TestLateDenials(t *testing.T) {
	t.Parallel()
	const took = 50 * time.Millisecond
	w := newWorld(t, "root")
	w.options.IndexTimeout = 10 * time.Millisecond
	w.cluster(t, "root", "hidden")
	var late atomic.Bool
	late.Store(true)
	w.shards["root"].handle(func(rw http.ResponseWriter, _ *http.Request) {
		if late.Load() {
			<-time.After(took)
		}
		rw.Header().Set(request.AccessAuthorizedHeader, "false")
		rw.WriteHeader(http.StatusForbidden)
	})
	w.ready(t, "hidden", "root")
	jane := w.person(t, "jane")
	checkAccess := func(cluster string) time.Duration {
		start := time.Now()
		jane.want(t, "/clusters/"+cluster+"/api", http.StatusForbidden)
		return time.Since(start)
	}
	const stretched = 80 * time.Millisecond
	require.GreaterOrEqual(t, checkAccess("hidden"), stretched)
	require.GreaterOrEqual(t, checkAccess("absent"), stretched)
	late.Store(false)
	require.GreaterOrEqual(t, checkAccess("hidden"), stretched, "the delay must remain after the shard responds quickly again")
	d := &w.proxy.router.resolver.delay
	d.increase(time.Hour)
	require.Equal(t, maxStretch*d.least, d.get(), "the delay must be limited")
	d.until = time.Now()
	require.Equal(t, d.least, d.get())
}

// TestDelayOfUnauthorizedUsers checks that users without access wait equally long for existing and unknown
// workspaces: all requests are pending at the same time.
func TestDelayOfUnauthorizedUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.IndexTimeout = maxIndexTimeout
	w.child(t, "root", "down", "hidden", markUnavailable)
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/timeout") {
			rw.WriteHeader(http.StatusGatewayTimeout)
			return
		}
		rw.WriteHeader(http.StatusForbidden)
		_, _ = rw.Write([]byte(authz.NotPermitted))
	})
	w.ready(t, "root:down", "root")
	jane := w.person(t, "jane")
	paths := []string{"/clusters/absent/api", "/clusters/root:absent/api", "/clusters/hidden/api", "/clusters/hidden/timeout", "/clusters/root:down/api"}
	responses := make([]<-chan string, 0, len(paths))
	for _, path := range paths {
		responses = append(responses, jane.async(t, path))
	}
	w.waits(t, int64(len(paths)))
	for i, response := range responses {
		require.Empty(t, response, paths[i])
	}
}
