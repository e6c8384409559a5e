package customresource

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

type trims int

func (n *trims) Trim() { *n++ }

// TestCompiledPatternsAreBounded: what a request compiles counts against the bound when it ends.
func TestCompiledPatternsAreBounded(t *testing.T) {
	var n, before trims
	s := &Server{patterns: &n}
	s.trimmingPatterns(func(http.ResponseWriter, *http.Request) { before = n }).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody))
	require.Zero(t, before)
	require.EqualValues(t, 1, n)
}
