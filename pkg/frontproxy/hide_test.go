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
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
)

// awkward are answers of a shard that do not report whether the user has access. The key is the
// path of the request.
var awkward = map[string]http.HandlerFunc{
	"/bad":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) },
	"/timeout": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGatewayTimeout) },
	"/broken":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
}

// TestStrangersLearnNothing holds that whatever a shard answers before it has
// authorized a request, or in a form that cannot be read, is no different from
// the answer for what does not exist; and that whoever may enter gets it as it is.
func TestStrangersLearnNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.IndexTimeout = 20 * time.Millisecond
	w.cluster(t, "root", "hidden")
	w.workspace(t, "root", "root", "down", "hidden", func(ws *tenancyv1alpha1.Workspace) {
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable
	})
	w.cluster(t, "root", "off", func(lc *corev1alpha1.LogicalCluster) { lc.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable })
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		rest := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/'):]
		rw.Header().Set(request.AccessAuthorizedHeader, strconv.FormatBool(r.Header.Get("X-Remote-User") == "owner"))
		switch answer := awkward[rest]; {
		case answer != nil:
			answer(rw, r)
		case rest == "/inner":
			rw.WriteHeader(http.StatusNotFound)
		case r.Header.Get("X-Remote-User") == "jane":
			rw.WriteHeader(http.StatusForbidden)
			_, _ = rw.Write([]byte(authz.NotPermitted))
		}
	})
	w.ready(t)
	w.knows(t, "root:down", "root")
	w.knows(t, "off", "root")
	jane, owner := w.person(t, "jane"), w.person(t, "owner")
	same := func(t *testing.T, cluster, path string, header ...string) {
		t.Helper()
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			unknownRes, unknown := jane.do(t, method, "/clusters/absent"+path, nil, header...)
			hiddenRes, hidden := jane.do(t, method, "/clusters/"+cluster+path, nil, header...)
			require.Equal(t, http.StatusForbidden, hiddenRes.StatusCode)
			require.Equal(t, unknown, hidden)
			unknownRes.Header.Del("Date")
			hiddenRes.Header.Del("Date")
			require.Equal(t, unknownRes.Header, hiddenRes.Header)
		}
	}
	for path, answer := range awkward {
		t.Run(path, func(t *testing.T) {
			same(t, "hidden", path)
			res, body := owner.get(t, "/clusters/hidden"+path)
			if path == "/broken" {
				require.Equal(t, http.StatusBadGateway, res.StatusCode)
				return
			}
			recorder := httptest.NewRecorder()
			answer(recorder, nil)
			require.Equal(t, recorder.Code, res.StatusCode)
			require.Equal(t, recorder.Body.String(), body)
		})
	}
	t.Run("unavailable", func(t *testing.T) {
		for _, cluster := range []string{"root:down", "off"} {
			same(t, cluster, "/api")
			res, _ := owner.get(t, "/clusters/"+cluster+"/api")
			require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		}
	})
	t.Run("no such protocol", func(t *testing.T) {
		unknown, hidden := jane.http1(t), jane.http1(t)
		for path, p := range map[string]*person{"/clusters/absent/api": unknown, "/clusters/hidden/api": hidden} {
			res, body := p.get(t, path, "Connection", "Upgrade", "Upgrade", "\x80")
			status(t, res, body, http.StatusBadRequest)
		}
	})
	t.Run("authorized", func(t *testing.T) {
		res, _ := owner.get(t, "/clusters/hidden/inner")
		require.Equal(t, http.StatusNotFound, res.StatusCode)
		require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader), "the mark is between the servers")
	})
}

// TestTheMarkDecides holds that of a shard that reports whether the user has entered
// nothing else counts, and what each answer costs the shard.
func TestTheMarkDecides(t *testing.T) {
	w := newWorld(t, "root")
	w.options.IndexTimeout = time.Millisecond
	w.cluster(t, "root", "hidden")
	var requests atomic.Int32
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		// /<status>/<what is decided about entering when it is given>/<text>
		answer := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/clusters/hidden/"), "/", 3)
		mayEnter := strconv.FormatBool(r.Header.Get("X-Remote-User") == "owner")
		if len(answer) < 3 { // the front-proxy's question
			rw.Header().Set(request.AccessAuthorizedHeader, mayEnter)
			rw.WriteHeader(http.StatusForbidden)
			return
		}
		rw.Header().Set(request.AccessAuthorizedHeader, answer[1])
		code, _ := strconv.Atoi(answer[0])
		rw.WriteHeader(code)
		_, _ = rw.Write([]byte(answer[2]))
	})
	w.ready(t)
	w.knows(t, "hidden", "root")
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
		require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader), "the mark is between the servers")
		if tc.concealed {
			require.Contains(t, body, authz.NotPermittedReason)
			require.Equal(t, strings.ReplaceAll(unknown, "/api", strings.ReplaceAll(tc.path, "%20", " ")), body)
		} else {
			require.True(t, strings.HasSuffix(tc.path, body), body)
		}
	}
}

// TestBodiesAreAskedForByShards holds that a client that offers a body is asked
// for it by the shard, and so not where it may not enter.
func TestBodiesAreAskedForByShards(t *testing.T) {
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
	w.ready(t)
	w.knows(t, "hidden", "root")
	for _, tc := range []struct {
		user, path string
		asked      bool
	}{
		{"jane", "/clusters/absent/x", false},
		{"jane", "/clusters/hidden/x", false},
		{"owner", "/clusters/hidden/x", true},
	} {
		p := w.person(t, tc.user).http1(t)
		p.Transport.(*http.Transport).ExpectContinueTimeout = timeout
		body := &offered{from: strings.NewReader("the body")}
		res, text := p.do(t, http.MethodPost, tc.path, body, "Expect", "100-continue")
		require.Equal(t, tc.asked, body.taken.Load(), "%+v: %s", tc, text)
		require.Equal(t, tc.asked, res.StatusCode == http.StatusOK)
	}
}

// offered is a body that knows whether it was taken.
type offered struct {
	from  *strings.Reader
	taken atomic.Bool
}

// Read implements io.Reader.
func (o *offered) Read(p []byte) (int, error) {
	o.taken.Store(true)
	return o.from.Read(p)
}

// TestLateDenials holds that once a shard has denied somebody later than
// --index-timeout, what does not exist is refused no earlier.
func TestLateDenials(t *testing.T) {
	const took = 50 * time.Millisecond
	w := newWorld(t, "root")
	w.options.IndexTimeout = 10 * time.Millisecond
	w.cluster(t, "root", "hidden")
	var late atomic.Bool
	late.Store(true)
	w.shards["root"].handle(func(rw http.ResponseWriter, _ *http.Request) {
		if late.Load() {
			<-time.After(took) // the shard's own time
		}
		rw.Header().Set(request.AccessAuthorizedHeader, "false")
		rw.WriteHeader(http.StatusForbidden)
	})
	w.ready(t)
	w.knows(t, "hidden", "root")
	jane := w.person(t, "jane")
	ask := func(cluster string) time.Duration {
		start := time.Now()
		res, _ := jane.get(t, "/clusters/"+cluster+"/api")
		require.Equal(t, http.StatusForbidden, res.StatusCode)
		return time.Since(start)
	}
	const stretched = 80 * time.Millisecond
	require.GreaterOrEqual(t, ask("hidden"), stretched)
	require.GreaterOrEqual(t, ask("absent"), stretched)
	late.Store(false)
	require.GreaterOrEqual(t, ask("hidden"), stretched, "nor does it show when the shard is quick again")
	d := &w.proxy.router.resolver.delay
	d.cover(time.Hour)
	require.Equal(t, maxStretch*d.least, d.get(), "within bounds")
	d.until = time.Now()
	require.Equal(t, d.least, d.get())
}

// TestStrangersWait holds that who may not enter waits, and for as long whether
// anything is there or not: the requests are seen waiting together, before any of
// them is answered.
func TestStrangersWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.IndexTimeout = maxIndexTimeout
	w.cluster(t, "root", "hidden")
	w.workspace(t, "root", "root", "down", "hidden", func(ws *tenancyv1alpha1.Workspace) {
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable
	})
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/timeout") {
			rw.WriteHeader(http.StatusGatewayTimeout)
			return
		}
		rw.WriteHeader(http.StatusForbidden)
		_, _ = rw.Write([]byte(authz.NotPermitted))
	})
	w.ready(t)
	w.knows(t, "root:down", "root")
	jane := w.person(t, "jane")
	paths := []string{"/clusters/absent/api", "/clusters/root:absent/api", "/clusters/hidden/api", "/clusters/hidden/timeout", "/clusters/root:down/api"}
	answers := make([]<-chan string, 0, len(paths))
	for _, path := range paths {
		answers = append(answers, jane.async(t, path))
	}
	require.Eventually(t, func() bool { return w.waiting() == len(paths) }, timeout, time.Millisecond)
	for i, answer := range answers {
		select {
		case text := <-answer:
			t.Errorf("%s was answered at once: %s", paths[i], text)
		default:
		}
	}
}
