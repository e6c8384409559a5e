package responses

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serveWatches returns the URL of a server of watches with the path as logical cluster, and a client.
func serveWatches(t *testing.T, limits ledger.Limits, handler http.HandlerFunc) (url string, client *http.Client) {
	t.Helper()
	watches := WithWatchBytes(handler, limits.Ledger(ledger.WatchBytesResource, 0, nil), func(*http.Request, *apirequest.RequestInfo) bool { return true }, func(w http.ResponseWriter, _ *http.Request, why string) {
		http.Error(w, why, http.StatusTooManyRequests)
	})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := request.WithClusterName(r.Context(), logicalcluster.Name(strings.TrimPrefix(r.URL.Path, "/")))
		ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: cmp.Or(r.URL.RawQuery, "joe"), Groups: r.Header["X-Group"]})
		watches.ServeHTTP(w, r.WithContext(apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{})))
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, server.Client()
}

func openWatch(t *testing.T, client *http.Client, url string, groups ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	r.Header["X-Group"] = groups
	res, err := client.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// TestClusterBytes checks the limit of a logical cluster, which does not apply to others and to servers.
func TestClusterBytes(t *testing.T) {
	const limit = 14 * leastEvent // one user gets half of it
	url, client := serveWatches(t, ledger.Limits{ledger.WatchBytesPerCluster: limit}, func(w http.ResponseWriter, r *http.Request) {
		for range 3 { // only the largest counts
			if _, err := w.Write(bytes.Repeat([]byte("x"), 3*leastEvent)); err != nil {
				return
			}
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	whole := func(path string, groups ...string) *http.Response {
		res := openWatch(t, client, url+path, groups...)
		require.Equal(t, http.StatusOK, res.StatusCode)
		_, err := io.ReadFull(res.Body, make([]byte, 9*leastEvent))
		require.NoError(t, err)
		return res
	}
	first := whole("/noisy")
	whole("/noisy")
	refused := openWatch(t, client, url+"/noisy")
	require.Equal(t, http.StatusOK, refused.StatusCode)
	text, err := io.ReadAll(refused.Body)
	require.NoError(t, err)
	require.Empty(t, text, "the watch must end because its event exceeds the limit")
	whole("/quiet")
	whole("/noisy", user.SystemPrivilegedGroup)
	require.NoError(t, first.Body.Close())
	require.Eventually(t, func() bool {
		res := openWatch(t, client, url+"/noisy")
		n, _ := io.ReadFull(res.Body, make([]byte, 9*leastEvent))
		return n == 9*leastEvent
	}, 10*time.Second, time.Millisecond, "ended watches must not count")
}

// TestUserBytes checks the limit of a user in all logical clusters, and that rejected bytes do not
// count for the logical cluster.
func TestUserBytes(t *testing.T) {
	url, client := serveWatches(t, ledger.Limits{ledger.WatchBytesPerCluster: 3 * leastEvent, ledger.WatchBytesPerUser: 2 * leastEvent}, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for _, path := range []string{"/a", "/b"} {
		require.Equal(t, http.StatusOK, openWatch(t, client, url+path).StatusCode)
	}
	refused := func(path, limit string) {
		res := openWatch(t, client, url+path)
		require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Contains(t, string(text), "--limit "+limit+"=")
	}
	for range 3 {
		refused("/c", "watch-bytes-per-user")
	}
	for _, name := range []string{"jane", "jack", "jill"} {
		require.Equal(t, http.StatusOK, openWatch(t, client, url+"/c?"+name).StatusCode)
	}
	refused("/c?jim", "watch-bytes-per-cluster")
}
