package serving_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/shardplane/shardplane/pkg/serving"
)

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
	failed = errors.New("away")
	expect("/readyz?verbose", 500, "[-]etcd failed: reason withheld\n[!]cache a: Refused\n[!]root: Unreachable\nreadyz check failed\n")
}
