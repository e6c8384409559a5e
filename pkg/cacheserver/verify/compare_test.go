package verify

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDiffering holds which fields are named of a replica that is different.
func TestDiffering(t *testing.T) {
	object := func() map[string]any {
		return map[string]any{
			"kind":     "Shard",
			"metadata": map[string]any{"name": "amber", "annotations": map[string]any{"custom": "kept"}, "finalizers": []any{"some/finalizer"}},
			"spec":     map[string]any{"baseURL": "https://amber", "n": int64(1)},
			"status":   map[string]any{"ready": true},
		}
	}
	require.Empty(t, differing("", object(), object()))
	other := object()
	other["metadata"] = map[string]any{"name": "amber", "uid": "x", "annotations": map[string]any{"more": "x"}}
	other["extra"], other["status"] = "x", nil
	other["spec"] = map[string]any{"baseURL": "https://other", "n": int64(1)}
	require.Equal(t, []string{"extra", "metadata.annotations.custom", "metadata.annotations.more", "metadata.finalizers", "metadata.uid", "spec.baseURL", "status"},
		differing("", object(), other))
}
