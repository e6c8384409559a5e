package frontproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/background"
)

func (p *person) stream(ctx context.Context, t testing.TB, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.world.proxy.URL()+path, nil)
	require.NoError(t, err)
	res, err := p.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(t, http.StatusOK, res.StatusCode)
	return res
}

// watches makes a shard respond with the lines that are sent to it until the channel is closed or
// the client disconnects, which sends the protocol to ended.
func (s *fakeShard) watches(lines <-chan string, ended chan<- string) {
	s.handle(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		flusher := http.NewResponseController(w)
		_ = flusher.Flush()
		for {
			select {
			case line, open := <-lines:
				if !open {
					return
				}
				_, _ = fmt.Fprintln(w, line)
				_ = flusher.Flush()
			case <-r.Context().Done():
				ended <- r.Proto
				return
			}
		}
	})
}

func TestWatches(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			w := newWorld(t, "root")
			w.ready(t, "root", "root")
			admin := w.person(t, "admin", "system:masters")
			if proto == "HTTP/1.1" {
				admin = admin.http1(t)
			}
			lines, ended := make(chan string), make(chan string, 1)
			w.shards["root"].watches(lines, ended)

			// Each line arrives before the next one is written.
			ctx, cancel := context.WithCancel(t.Context())
			res := admin.stream(ctx, t, "/clusters/root/api/v1/configmaps?watch=true")
			require.Equal(t, proto, res.Proto)
			reader := bufio.NewReader(res.Body)
			for i := range 100 {
				lines <- fmt.Sprint(i)
				requireLine(t, reader, fmt.Sprint(i))
			}
			// If the client disconnects, the request to the shard ends.
			cancel()
			receive(t, ended)

			// If the shard ends the stream, so does the front-proxy.
			res = admin.stream(t.Context(), t, "/clusters/root/api/v1/configmaps?watch=1")
			close(lines)
			rest, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Empty(t, rest)

			// If the shard fails, the stream ends as well.
			lines = make(chan string)
			w.shards["root"].watches(lines, ended)
			res = admin.stream(t.Context(), t, "/clusters/root/api/v1/configmaps?watch=1")
			w.shards["root"].http.CloseClientConnections()
			_, err = io.ReadAll(res.Body)
			require.NoError(t, err)
			receive(t, ended)

			// Any other incomplete response fails for the client.
			w.shards["root"].handle(func(rw http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(rw, "partial resp")
				_ = http.NewResponseController(rw).Flush()
				panic(http.ErrAbortHandler)
			})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.proxy.URL()+"/clusters/root/api", nil)
			require.NoError(t, err)
			res, err = admin.Do(req)
			if err == nil {
				_, err = io.ReadAll(res.Body)
				require.NoError(t, res.Body.Close())
			}
			require.Error(t, err)
		})
	}
}

func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(timeout):
		t.Fatal("no value received")
		panic("unreachable")
	}
}

// upgrade opens a connection to echoUpgrade.
func (w *world) upgrade(t testing.TB, path string, cert tls.Certificate) *bufio.Reader {
	t.Helper()
	config := &tls.Config{RootCAs: w.servingCA.pool(), Certificates: []tls.Certificate{cert}}
	address := strings.TrimPrefix(w.proxy.URL(), "https://")
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", path)
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
	require.Equal(t, "echo", res.Header.Get("Upgrade"))
	require.NoError(t, res.Body.Close())
	_, err = fmt.Fprintln(conn, "hello")
	require.NoError(t, err)
	requireLine(t, reader, "hello")
	return reader
}

func requireLine(t testing.TB, reader *bufio.Reader, want string) {
	t.Helper()
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, want+"\n", line)
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.ready(t, "root", "root")
	admin := w.person(t, "admin", "system:masters")
	w.shards["root"].handle(echoUpgrade)
	upgraded := w.upgrade(t, "/clusters/root/exec", w.clientCA.pair(t, "admin", "system:masters"))

	ended := make(chan string, 3)
	w.shards["root"].watches(make(chan string), ended)
	res2 := admin.stream(t.Context(), t, "/clusters/root/api/v1/configmaps?watch=true")
	res1 := admin.http1(t).stream(t.Context(), t, "/clusters/root/api/v1/configmaps?watch=true")
	release, started := make(chan struct{}), make(chan struct{})
	w.shards["root"].handle(func(rw http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		_, _ = io.WriteString(rw, "slow response")
	})
	slow := admin.async(t, "/clusters/root/slow")
	receive(t, started)

	var stopping sync.WaitGroup
	stopping.Go(w.stop)
	for _, res := range []*http.Response{res1, res2} {
		rest, err := io.ReadAll(res.Body)
		require.NoError(t, err, "watches must end without an error (%s)", res.Proto)
		require.Empty(t, rest)
		receive(t, ended)
	}
	_, err := upgraded.ReadString('\n')
	require.Error(t, err, "upgraded connections must end")
	close(release)
	require.Equal(t, "slow response", receive(t, slow), "requests in flight must complete")
	stopping.Wait()
}

// echoUpgrade switches protocols and echoes.
func echoUpgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "echo" || r.ProtoMajor != 1 || r.Header.Get("X-Remote-User") == "" {
		http.Error(w, "not an upgrade from the front-proxy", http.StatusBadRequest)
		return
	}
	conn, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_, _ = io.Copy(conn, buffer)
}

// TestInformerThroughProxy runs an informer of this project for a logical cluster behind the
// front-proxy while its shard restarts.
func TestInformerThroughProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.child(t, "root", "a", "aaaa")
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) { w.shards["root"].data.ServeHTTP(rw, r) })
	w.ready(t, "root:a", "root")
	root := w.factory(t, w.proxy.URL()).Cluster(logicalcluster.NewPath("root"))
	informer := kinds.Workspaces.Informer(root, client.InformerOptions[*tenancyv1alpha1.Workspace]{})
	background.Run(t.Context(), t, informer.Run)
	for i := range 3 {
		name := fmt.Sprintf("w%d", i)
		w.workspace(t, "root", "root", name, name+name)
		require.Eventually(t, func() bool {
			_, err := informer.Lister().Cluster("root").Get("", name)
			return err == nil
		}, timeout, 5*time.Millisecond)
		w.shards["root"].kill()
		w.shards["root"].start(t)
	}
	require.Equal(t, 4, informer.Lister().Len())
}
