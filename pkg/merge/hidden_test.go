package merge_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/merge"
)

// TestHiddenLogicalClusters verifies that responses exclude the objects of hidden logical clusters, which exist on each
// shard with the same names.
func TestHiddenLogicalClusters(t *testing.T) {
	a, b := newFake(t, "a", "1", "2", "3"), newFake(t, "b", "1", "2", "3")
	for _, f := range []*fake{a, b} {
		f.clusters = map[string]string{"1": "system:admin", "2": f.name + "-tenant", "3": "system:homes"}
	}
	w := newWorld(t, a, b)
	hiding := func(pairs ...string) *merge.Request {
		r := w.request(pairs...)
		r.Hidden = func(cluster logicalcluster.Name) bool { return strings.HasPrefix(cluster.String(), "system:") }
		return r
	}
	full, _ := w.listed(hiding())
	require.Equal(t, "a/2 b/2", full.names())

	var names []string
	for token := ""; ; {
		page, _ := w.listed(hiding("limit", "1", "continue", token))
		names = append(names, strings.Fields(page.names())...)
		if token = page.Metadata.Continue; token == "" {
			break
		}
	}
	require.Equal(t, []string{"a/2", "b/2"}, names)

	s := w.watched(hiding("resourceVersion", full.Metadata.ResourceVersion))
	for _, f := range []*fake{a, b} {
		f.happens("MODIFIED", "1")
		f.happens("MODIFIED", "2")
		event := s.next()
		require.Equal(t, "MODIFIED "+f.name+"/2", event.String())
		// The version includes the hidden event.
		require.Equal(t, uint64(len(f.history)), positions(t, event.Object.Metadata.ResourceVersion, f.name)[0])
	}

	out := httptest.NewRecorder()
	require.NoError(t, w.request().List(t.Context(), out))
	require.Contains(t, out.Body.String(), "system:homes", "objects must not be hidden without Hidden")
}
