package serving_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
