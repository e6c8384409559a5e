package frontproxy

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestShutdownDelay checks that during the shutdown delay the front-proxy is not ready but serves:
// watches continue, and each further request uses a new connection.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.ShutdownDelay = 4 * time.Second
	w.ready(t, "root", "root")
	jane := w.person(t, "jane")
	old := w.person(t, "jane").http1(t)
	require.Equal(t, "root", jane.echoed(t, "/clusters/root/api").Shard)
	res, _ := old.get(t, "/clusters/root/api")
	require.False(t, res.Close)

	lines, ended := make(chan string), make(chan string, 1)
	w.shards["root"].watches(lines, ended)
	watch := bufio.NewReader(jane.stream(t.Context(), t, "/clusters/root/api/v1/namespaces?watch=true").Body)
	w.shards["root"].handle(w.shards["root"].echo)
	var stopping sync.WaitGroup
	stopping.Go(w.stop)
	require.Eventually(t, func() bool { return w.proxy.health.ready() != nil }, timeout, time.Millisecond)

	old.want(t, "/readyz", http.StatusInternalServerError)
	res, _ = old.want(t, "/clusters/root/api", http.StatusOK)
	require.True(t, res.Close)
	reused := func() (again bool) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { again = info.Reused }})
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.proxy.URL()+"/clusters/root/api", http.NoBody)
		require.NoError(t, err)
		res, err := jane.Do(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
		return again
	}
	require.Eventually(t, func() bool { return !reused() }, timeout, time.Millisecond, "HTTP/2 connections must not be reused")
	lines <- "still here"
	requireLine(t, watch, "still here")
	stopping.Wait()
	_, err := watch.ReadString('\n')
	require.ErrorContains(t, err, "EOF")
	<-ended
}

// TestRequestsAreSentOnce checks that the front-proxy does not repeat requests that may have
// reached a shard, and that only responses to idempotent requests have Retry-After.
func TestRequestsAreSentOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.cluster(t, "one", "aaaa")
	one := w.shards["one"]
	var methods recorder[string]
	cut := func(int) bool { return true } // whether the shard closes the connection after it has read the n-th request
	one.handle(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/version") { // access check
			one.echo(rw, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if cut(methods.add(r.Method)) {
			one.http.CloseClientConnections()
			panic(http.ErrAbortHandler)
		}
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`)
	})
	w.ready(t, "aaaa", "one")
	admin := w.person(t, "admin", "system:masters")
	const path = "/clusters/aaaa/api/v1/namespaces/default/configmaps"
	for method, header := range map[string][]string{
		http.MethodPost:   {"Content-Type", "application/json", "Idempotency-Key", "1"},
		http.MethodPut:    {"Content-Type", "application/json"},
		http.MethodPatch:  {"Content-Type", "application/merge-patch+json"},
		http.MethodDelete: nil,
		http.MethodGet:    nil,
		http.MethodHead:   nil,
	} {
		for _, bodied := range []bool{true, false} {
			name := method
			var body io.Reader
			if bodied && method != http.MethodGet && method != http.MethodHead {
				body, name = strings.NewReader(`{"metadata":{"name":"a"}}`), name+" with a body"
			}
			t.Run(name, func(t *testing.T) {
				// The connection has been used before.
				admin.echoed(t, "/clusters/aaaa/version")
				methods.take()
				res, text := admin.do(t, method, path, body, header...)
				require.Equal(t, []string{method}, methods.take(), "the front-proxy must send the request once")
				require.Equal(t, http.StatusBadGateway, res.StatusCode, text)
				want := ""
				if method == http.MethodGet || method == http.MethodHead {
					want = "1"
				}
				require.Equal(t, want, res.Header.Get("Retry-After"))
			})
		}
	}
	t.Run("client-go", func(t *testing.T) {
		in := kinds.ConfigMaps.InNamespace(w.factory(t, w.proxy.URL()).Cluster(logicalcluster.NewPath("aaaa")), "default")
		methods.take()
		cut = func(n int) bool { return n == 1 }
		_, err := in.Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err, "the client must retry the request")
		require.Equal(t, []string{http.MethodGet, http.MethodGet}, methods.take())
		_, err = in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		require.ErrorContains(t, err, "failed before it responded")
		require.Equal(t, []string{http.MethodPost}, methods.take())
	})
}
