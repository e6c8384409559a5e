package serving_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/shardplane/shardplane/pkg/serving"
)

func TestLongPaths(t *testing.T) {
	handler := serving.LongPaths().Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for path, want := range map[string]int{
		"/clusters/root/api":                                              http.StatusOK,
		"/clusters/root/" + strings.Repeat("x", 8<<10):                    http.StatusRequestURITooLong,
		"/clusters/root/" + strings.Repeat("%2F", 4<<10):                  http.StatusRequestURITooLong,
		"/clusters/root/api?labelSelector=" + strings.Repeat("x", 16<<10): http.StatusOK,
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		require.Equal(t, want, w.Code, "%.40s", path)
	}
}

func TestMaskTokens(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"/clusters/root/api?limit=5":                               "/clusters/root/api?limit=5",
		"/api?access_token=secret":                                 "/api?access_token=masked",
		"/api?a=%2F&access_token=secret%3D&b=+&access_token=other": "/api?a=%2F&access_token=masked&b=+&access_token=masked",
		"/api?my_access_token=mine":                                "/api?my_access_token=mine",
	} {
		original := httptest.NewRequestWithContext(t.Context(), http.MethodGet, uri, http.NoBody)
		var got *http.Request
		serving.MaskTokens().Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got = r
		})).ServeHTTP(httptest.NewRecorder(), original)
		require.Equal(t, want, got.RequestURI)
		require.Equal(t, want, got.URL.RequestURI())
		require.Equal(t, uri, original.URL.RequestURI(), "the original request must not change")
	}
}

func TestReadinessWarnings(t *testing.T) {
	var failed error
	var warnings []string
	mux := http.NewServeMux()
	healthz.InstallReadyzHandler(mux, healthz.NamedCheck("etcd", func(*http.Request) error { return failed }))
	handler := serving.WithReadinessWarnings(mux, func() []string { return warnings })
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		return w.Code, w.Body.String()
	}
	expect := func(path string, code int, body string) {
		t.Helper()
		gotCode, got := get(path)
		require.Equal(t, code, gotCode)
		require.Equal(t, body, got)
	}
	expect("/readyz?verbose", 200, "[+]etcd ok\nreadyz check passed\n")
	warnings = []string{"cache a: Refused", "root: Unreachable"}
	expect("/readyz", 200, "ok")
	expect("/readyz?verbose", 200, "[+]etcd ok\n[!]cache a: Refused\n[!]root: Unreachable\nreadyz check passed\n")
	expect("/readyz/etcd?verbose", 200, "ok")
	failed = errors.New("unreachable")
	expect("/readyz?verbose", 500, "[-]etcd failed: reason withheld\n[!]cache a: Refused\n[!]root: Unreachable\nreadyz check failed\n")
}
