package health

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/documented"
)

// TestCacheCheck checks what is reported about a cache server that cannot be used, and about other servers.
func TestCacheCheck(t *testing.T) {
	const shards = `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`
	respond := func(digests int, body string, list int, listed string) func(w http.ResponseWriter, r *http.Request) {
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
		name            string
		handler         http.HandlerFunc
		reason, wantErr string
		unreachable     bool
	}{
		{name: "cache server", handler: respond(200, `{"dataID":"2","form":1}`, 500, "")},
		{name: "kcp cache server", handler: respond(404, "", 200, shards), reason: "NotACacheServer", wantErr: "is for another server"},
		{name: "other version", handler: respond(200, `{"dataID":"1","form":2}`, 200, shards), reason: "NotACacheServer", wantErr: "a cache server of another version"},
		{name: "shard", handler: respond(404, "404 page not found", 404, "404 page not found"), reason: "NotACacheServer", wantErr: "correct its server, e.g. https://<cache server>/services/cache"},
		{name: "other server", handler: respond(200, "<html>", 200, "<html>"), reason: "NotACacheServer", wantErr: "cache.kubeconfig is for another server"},
		{name: "kube-apiserver", handler: respond(403, "{}", 403, "{}"), reason: "Refused", wantErr: "otherwise correct the kubeconfig"},
		{name: "rejected certificate", handler: respond(401, "{}", 401, "{}"), reason: "Refused", wantErr: "must be for the user system:shard:amber in the group system:kcp:shards"},
		{name: "full", handler: respond(200, `{"dataID":"2","form":1,"full":true}`, 500, ""), reason: "Full", wantErr: "free space or raise its quota"},
		{name: "internal error", handler: respond(500, "etcd", 500, ""), reason: "Unreachable", wantErr: "request for digests: 500: etcd"},
		{name: "unreachable", handler: respond(200, "", 200, ""), unreachable: true, reason: "Unreachable", wantErr: "the existing replicas are used meanwhile"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(tc.handler)
			t.Cleanup(server.Close)
			if tc.unreachable {
				server.Close()
			}
			f, err := client.NewFactory(&rest.Config{Host: server.URL})
			require.NoError(t, err)
			t.Cleanup(f.CloseIdleConnections)
			registry := prometheus.NewRegistry()
			c := NewCacheCheck(CheckedCache{Shard: "amber", Kubeconfig: "cache.kubeconfig", Cache: f, Metrics: registry})
			require.Nil(t, c.Reasons(), "reasons must be nil before the first check")
			reason, err := c.check(t.Context())
			require.Equal(t, tc.reason, reason, "%v", err)
			c.report(t.Context(), reason, err)
			require.Equal(t, map[string]string{"cache": tc.reason}, c.Reasons())
			if tc.reason == "" {
				require.NoError(t, err)
				require.Empty(t, reasonsIn(t, registry))
				return
			}
			require.ErrorContains(t, err, tc.wantErr)
			require.Equal(t, []string{"cache " + tc.reason}, reasonsIn(t, registry))
			c.report(t.Context(), "", nil)
			require.Empty(t, reasonsIn(t, registry), "the metric must be removed after the recovery")
		})
	}
}

// reasonsIn returns the caches and reasons in the metric.
func reasonsIn(t *testing.T, registry *prometheus.Registry) (all []string) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "shardplane_replication_cache_unavailable" {
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

// TestDocumented: the documentation contains all reasons.
func TestDocumented(t *testing.T) {
	var all []string
	for _, reason := range []string{reasonUnreachable, reasonRefused, reasonNoCache, reasonFull} {
		all = append(all, "CachesReady "+reason)
	}
	require.ElementsMatch(t, documented.Conditions(t, "Shard with a cache server"), all)
}
