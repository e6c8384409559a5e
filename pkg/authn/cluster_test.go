package authn_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/authn"
)

func TestWithTokenCluster(t *testing.T) {
	t.Parallel()
	claims := func(cluster string) string {
		body := `{"iss":"https://kcp.default.svc","kubernetes.io":{"clusterName":"` + cluster + `"}}`
		return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(body)) + ".c2ln"
	}
	for _, tc := range []struct{ name, path, token, want string }{
		{name: "no logical cluster", path: "/api/v1/namespaces", token: claims("abc"), want: "/clusters/abc/api/v1/namespaces"},
		{name: "escaped", path: "/apis/a%2Fb/v1", token: claims("abc"), want: "/clusters/abc/apis/a%2Fb/v1"},
		{name: "version", path: "/version", token: claims("abc"), want: "/clusters/abc/version"},
		{name: "another logical cluster", path: "/clusters/other/api", token: claims("abc"), want: "/clusters/other/api"},
		{name: "probe", path: "/readyz", token: claims("abc"), want: "/readyz"},
		{name: "metrics", path: "/metrics", token: claims("abc"), want: "/metrics"},
		{name: "services", path: "/services/apiexport/a/b", token: claims("abc"), want: "/services/apiexport/a/b"},
		{name: "traversal", path: "/api", token: claims("system:../root"), want: "/api"},
		{name: "wildcard", path: "/api", token: claims("*"), want: "/api"},
		{name: "no claim", path: "/api", token: claims(""), want: "/api"},
		{name: "no JWT", path: "/api", token: "user-1-token", want: "/api"},
		{name: "no token", path: "/api", want: "/api"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got string
			handler := authn.WithTokenCluster(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.EscapedPath() }))
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tc.path, http.NoBody)
			handler.ServeHTTP(httptest.NewRecorder(), r)
			if tc.token == "" {
				require.Equal(t, tc.want, got)
				return
			}
			for _, header := range []http.Header{bearer(tc.token), webSocket(tc.token, "v4.channel.k8s.io")} {
				r.Header = header
				handler.ServeHTTP(httptest.NewRecorder(), r)
				require.Equal(t, tc.want, got)
			}
		})
	}
}

// reloadsOf returns the number of reloads with a result.
func reloadsOf(t *testing.T, registry *prometheus.Registry, what, result string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "shardplane_authentication_reloads_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["what"] == what && labels["result"] == result {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func base64Of(content []byte) string { return base64.StdEncoding.EncodeToString(content) }
