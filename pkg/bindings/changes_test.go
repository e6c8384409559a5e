package bindings

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// TestSchemasAreDroppedAfterTheirEnd: listeners are notified of the end of a binding even if unused schemas are dropped first.
func TestSchemasAreDroppedAfterTheirEnd(t *testing.T) {
	w := newShard(t)
	w.schema("one", widgets, "size", 1)
	w.Index.put(bindingOf("a", "x", boundTo(widgets, "one", "h")), 1)
	w.replace("a", "x", nil, 2)
	w.dropUnused()
	w.notifyChanges(t.Context())
	require.True(t, slices.ContainsFunc(w.changes, func(c definitions.Change) bool { return c.Removed && c.Cluster.Name == "a" }), "%v", w.changes)
	w.dropUnused()
	require.Nil(t, w.schemas.cached("one"))
}
