package replication

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestCaches holds what is said of cache servers with which something is wrong, and of what is no cache server.
func TestCaches(t *testing.T) {
	const shards = `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`
	answers := func(digests int, body string, list int, listed string) func(w http.ResponseWriter, r *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			code, content := list, listed
			if strings.HasSuffix(r.URL.Path, "/digests") {
				code, content = digests, body
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(content))
		}
	}
	for _, tc := range []struct {
		name           string
		answer         func(w http.ResponseWriter, r *http.Request)
		reason, says   string
		readOnly, gone bool
	}{
		{name: "a good one", answer: answers(200, `{"dataID":"2","form":1}`, 500, "")},
		{name: "one that is only read", answer: answers(200, `{"dataID":"1","form":1}`, 500, ""), readOnly: true},
		{name: "kcp's", answer: answers(404, "", 200, shards), reason: "NotACacheServer", says: "something else"},
		{name: "one of another version", answer: answers(200, `{"dataID":"1","form":2}`, 200, shards), reason: "NotACacheServer", says: "a cache server of another version"},
		{name: "the first once more", answer: answers(200, `{"dataID":"1","form":1}`, 500, ""), reason: "SameServer", says: `leads to the same cache server, or to its data, as first.kubeconfig of cache "first"`},
		{name: "a shard", answer: answers(404, "404 page not found", 404, "404 page not found"), reason: "NotACacheServer", says: "correct its server, as https://<cache server>/services/cache"},
		{name: "another server", answer: answers(200, "<html>", 200, "<html>"), reason: "NotACacheServer", says: "second.kubeconfig leads to is something else"},
		{name: "a kube-apiserver", answer: answers(403, "{}", 403, "{}"), reason: "Refused", says: "and otherwise correct the kubeconfig"},
		{name: "one that knows nobody", answer: answers(401, "{}", 401, "{}"), reason: "Refused", says: "has to be that of system:shard:amber in group system:kcp:shards"},
		{name: "a full one", answer: answers(200, `{"dataID":"2","form":1,"full":true}`, 500, ""), reason: "Full", says: "make room there, or raise its quota"},
		{name: "one that is ill", answer: answers(500, "etcd", 500, ""), reason: "Unreachable", says: "answered with 500: etcd"},
		{name: "one that is away", answer: answers(200, "", 200, ""), gone: true, reason: "Unreachable", says: "everything goes on with what is known"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			factory := func(handler http.HandlerFunc, gone bool) *client.Factory {
				server := httptest.NewServer(handler)
				t.Cleanup(server.Close)
				if gone {
					server.Close()
				}
				f, err := client.NewFactory(&rest.Config{Host: server.URL})
				require.NoError(t, err)
				t.Cleanup(f.CloseIdleConnections)
				return f
			}
			registry := prometheus.NewRegistry()
			c := NewCaches("amber", registry,
				WatchedCache{Name: "first", Kubeconfig: "first.kubeconfig", Cache: factory(answers(200, `{"dataID":"1","form":1}`, 500, ""), false), Pushed: true},
				WatchedCache{Name: "second", Kubeconfig: "second.kubeconfig", Cache: factory(tc.answer, tc.gone), Pushed: !tc.readOnly},
			)
			reason, err := c.look(t.Context(), c.all[0])
			require.NoError(t, err)
			require.Empty(t, reason)
			second := c.all[1]
			reason, err = c.look(t.Context(), second)
			require.Equal(t, tc.reason, reason, "%v", err)
			second.say(t.Context(), reason, err)
			if tc.reason == "" {
				require.NoError(t, err)
				require.Empty(t, said(t, registry))
				return
			}
			require.ErrorContains(t, err, tc.says)
			require.Equal(t, []string{"second " + tc.reason}, said(t, registry))
			second.say(t.Context(), "", nil)
			require.Empty(t, said(t, registry), "it is well again")
		})
	}
}

// said returns what the metric says to be wrong.
func said(t *testing.T, registry *prometheus.Registry) (all []string) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "shardplane_replication_cache_trouble" {
			continue
		}
		for _, metric := range family.GetMetric() {
			var values []string
			for _, label := range metric.GetLabel() {
				values = append(values, label.GetValue())
			}
			all = append(all, strings.Join(values, " "))
		}
	}
	return all
}
