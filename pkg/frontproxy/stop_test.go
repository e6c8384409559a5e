package frontproxy

import (
	"bufio"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShutdownDelay holds that a front-proxy that is to stop says so first and goes on to serve:
// watches last, and each further request comes by another connection.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.ShutdownDelay = 4 * time.Second
	w.ready(t)
	w.knows(t, "root", "root")
	jane := w.person(t, "jane")
	old := w.person(t, "jane").http1(t)
	require.Equal(t, "root", jane.echoed(t, "/clusters/root/api").Shard)
	res, _ := old.get(t, "/clusters/root/api")
	require.False(t, res.Close)

	lines, gone := make(chan string), make(chan string, 1)
	w.shards["root"].watches(lines, gone)
	watch := bufio.NewReader(jane.stream(t.Context(), t, "/clusters/root/api/v1/namespaces?watch=true").Body)
	w.shards["root"].handle(w.shards["root"].echo)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	require.Eventually(t, func() bool { return w.proxy.health.ready() != nil }, timeout, time.Millisecond)

	res, _ = old.get(t, "/readyz")
	require.Equal(t, http.StatusInternalServerError, res.StatusCode)
	res, body := old.get(t, "/clusters/root/api")
	require.Equal(t, http.StatusOK, res.StatusCode, body)
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
	require.Eventually(t, func() bool { return !reused() }, timeout, time.Millisecond, "HTTP/2 connections are not used again")
	lines <- "still here"
	line, err := watch.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "still here\n", line)
	<-stopped
	_, err = watch.ReadString('\n')
	require.ErrorContains(t, err, "EOF")
	<-gone
}
