package frontproxy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// protocol returns by which protocol the shard gets a request.
func (p *person) protocol(t *testing.T, method, path string) string {
	t.Helper()
	var body io.Reader
	if method != http.MethodGet {
		body = strings.NewReader("{}")
	}
	res, text := p.do(t, method, path, body)
	require.Equal(t, http.StatusOK, res.StatusCode, text)
	var got seen
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	return got.Proto
}

const readPath = "/clusters/root/api/v1/namespaces/default/configmaps/x"

// TestReads: short reads have connections of their own, everything else shares one, and so
// do reads when there are too many, or too many that break connections.
func TestReads(t *testing.T) {
	w := newWorld(t, "root")
	w.ready(t)
	w.knows(t, "root", "root")
	admin := w.person(t, "kcp-admin", "system:kcp:admin")
	shard := w.shards["root"]
	require.Equal(t, "HTTP/1.1", admin.protocol(t, http.MethodGet, readPath))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		require.Equal(t, "HTTP/2.0", admin.protocol(t, method, readPath), method)
	}
	require.Equal(t, "HTTP/2.0", admin.protocol(t, http.MethodGet, "/clusters/root/api/v1/configmaps?watch=true"))

	arrived, release := make(chan string), make(chan struct{})
	shard.handle(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- r.Proto
		<-release
	})
	answers := make([]<-chan string, 0, maxReads+2)
	for n := range maxReads + 2 {
		answers = append(answers, admin.async(t, readPath))
		want := "HTTP/1.1"
		if n >= maxReads {
			want = "HTTP/2.0"
		}
		require.Equal(t, want, <-arrived, "read %d at a time", n+1)
	}
	close(release)
	for _, answer := range answers {
		<-answer
	}
}

// TestReadsThatBreak: who leaves amid answers again and again costs no handshake each time.
func TestReadsThatBreak(t *testing.T) {
	w := newWorld(t, "root")
	w.ready(t)
	w.knows(t, "root", "root")
	admin := w.person(t, "kcp-admin", "system:kcp:admin")
	arrived := make(chan string)
	w.shards["root"].handle(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- r.Proto
		<-r.Context().Done()
	})
	for n := 0; ; n++ {
		require.Less(t, n, 20*maxReads, "further reads share a connection")
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.proxy.URL()+readPath, nil)
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if res, err := admin.Do(req); err == nil {
				_ = res.Body.Close()
			}
		}()
		proto := <-arrived
		cancel()
		<-done
		if proto == "HTTP/2.0" {
			require.GreaterOrEqual(t, n, maxReads)
			return
		}
	}
}
