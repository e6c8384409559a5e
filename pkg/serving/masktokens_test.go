package serving_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/serving"
)

func TestMaskTokens(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"/clusters/root/api?limit=5":                               "/clusters/root/api?limit=5",
		"/api?access_token=secret":                                 "/api?access_token=masked",
		"/api?a=%2F&access_token=secret%3D&b=+&access_token=other": "/api?a=%2F&access_token=masked&b=+&access_token=masked",
		"/api?my_access_token=mine":                                "/api?my_access_token=mine",
	} {
		asked := httptest.NewRequestWithContext(t.Context(), http.MethodGet, uri, http.NoBody)
		var got *http.Request
		serving.MaskTokens().Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got = r
		})).ServeHTTP(httptest.NewRecorder(), asked)
		require.Equal(t, want, got.RequestURI)
		require.Equal(t, want, got.URL.RequestURI())
		require.Equal(t, uri, asked.URL.RequestURI(), "the request of the server stays as it is")
	}
}
