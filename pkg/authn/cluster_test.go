package authn_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"

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
		{name: "not a JWT", path: "/api", token: "user-1-token", want: "/api"},
		{name: "no token", path: "/api", want: "/api"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got string
			handler := authn.WithTokenCluster(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.EscapedPath() }))
			headers := []http.Header{bearer(tc.token), webSocket(tc.token, "v4.channel.k8s.io")}
			if tc.token == "" {
				headers = []http.Header{{}}
			}
			for _, header := range headers {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tc.path, http.NoBody)
				r.Header = header
				handler.ServeHTTP(httptest.NewRecorder(), r)
				require.Equal(t, tc.want, got)
			}
		})
	}
}
