package customresource

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/customresource/documents"
)

type trims int

func (n *trims) Trim() { *n++ }

// TestCompiledPatternsAreBounded: patterns that a request compiles are trimmed when it ends.
func TestCompiledPatternsAreBounded(t *testing.T) {
	var n, before trims
	s := &Server{patterns: &n, builtIns: &documents.BuiltIns{}}
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { before = n })
	s.Wrap(next).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody))
	require.Zero(t, before)
	require.EqualValues(t, 1, n)
}
