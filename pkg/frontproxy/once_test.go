package frontproxy

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// breaking is a shard that breaks what carries a request, once it has read it, and counts what it
// has seen.
type breaking struct {
	*fakeShard

	mu   sync.Mutex
	seen map[string]int
	// cut breaks the request, as long as it returns true.
	cut func(n int) bool
}

func (b *breaking) serve(rw http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/version") { // whether somebody may enter
		b.echo(rw, r)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	b.mu.Lock()
	b.seen[r.Method]++
	n := b.seen[r.Method]
	b.mu.Unlock()
	if b.cut(n) {
		b.http.CloseClientConnections()
		panic(http.ErrAbortHandler)
	}
	rw.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(rw, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`)
}

func (b *breaking) takeSeen() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.seen
	b.seen = map[string]int{}
	return seen
}

// TestRequestsAreSentOnce: what may have reached a shard is never sent there again by the
// front-proxy, and a client is asked to repeat only what can be done twice.
func TestRequestsAreSentOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root", "one")
	w.cluster(t, "one", "aaaa")
	b := &breaking{fakeShard: w.shards["one"], seen: map[string]int{}, cut: func(int) bool { return true }}
	b.handle(b.serve)
	w.ready(t)
	w.knows(t, "aaaa", "one")
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
				// The connection is one that has carried others before.
				admin.echoed(t, "/clusters/aaaa/version")
				b.takeSeen()
				res, says := admin.do(t, method, path, body, header...)
				require.Equal(t, map[string]int{method: 1}, b.takeSeen(), "the front-proxy sends it once")
				require.Equal(t, http.StatusBadGateway, res.StatusCode, says)
				want := ""
				if method == http.MethodGet || method == http.MethodHead {
					want = "1"
				}
				require.Equal(t, want, res.Header.Get("Retry-After"))
			})
		}
	}
	t.Run("client-go", func(t *testing.T) {
		certFile, keyFile := w.clientCA.issue(t, w.dir, "repeater", "system:masters")
		factory, err := client.NewFactory(&rest.Config{Host: w.proxy.URL(), TLSClientConfig: rest.TLSClientConfig{
			CAData: mustRead(t, w.servingCA.file), CertData: mustRead(t, certFile), KeyData: mustRead(t, keyFile),
		}})
		require.NoError(t, err)
		t.Cleanup(factory.CloseIdleConnections)
		in := kinds.ConfigMaps.InNamespace(factory.Cluster(logicalcluster.NewPath("aaaa")), "default")
		b.takeSeen()
		b.cut = func(n int) bool { return n == 1 }
		_, err = in.Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err, "it is repeated by the client")
		require.Equal(t, map[string]int{http.MethodGet: 2}, b.takeSeen())
		_, err = in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		require.ErrorContains(t, err, "broke before it answered")
		require.Equal(t, map[string]int{http.MethodPost: 1}, b.takeSeen())
	})
}
