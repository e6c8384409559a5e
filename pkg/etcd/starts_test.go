package etcd

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStarts verifies that data from after a backup is not considered part of restored data, even at the same revision,
// and that restarts without a restore preserve all data.
func TestStarts(t *testing.T) {
	t.Parallel()
	directory, backup := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "backup")
	var server *Server
	// on starts a server on the data, and writes n times.
	on := func(n int) (starts *Starts, revision int64) {
		server = start(t, directory)
		h := &Handle{client: server.Client(), where: "there", prefix: "/shardplane"}
		starts, err := h.Start(t.Context())
		require.NoError(t, err)
		for range n {
			put(t, server, "/shardplane/core/configmaps/root/default/a", "value")
		}
		resp, err := server.Client().KV.Get(t.Context(), "none")
		require.NoError(t, err)
		return starts, resp.Header.Revision
	}
	had := func(want bool, starts *Starts, name string, revision int64) {
		t.Helper()
		got, err := starts.Had(t.Context(), name, revision)
		require.NoError(t, err)
		require.Equal(t, want, got, "up to %d", revision)
	}
	starts, copied := on(10)
	first := starts.Latest()
	had(true, starts, first, copied)
	had(false, starts, "unknown", copied)
	server.Stop()
	require.NoError(t, os.CopyFS(backup, os.DirFS(directory)))

	starts, seen := on(20)
	second := starts.Latest()
	require.NotEqual(t, first, second)
	had(true, starts, first, copied)
	had(true, starts, second, copied)
	had(true, starts, second, seen)
	// The first server reads the start of another replica on demand.
	h := &Handle{client: server.Client(), where: "there", prefix: "/shardplane"}
	beside, err := h.Start(t.Context())
	require.NoError(t, err)
	had(true, beside, second, seen)
	had(true, starts, beside.Latest(), seen)
	require.Equal(t, beside.Latest(), starts.Latest())
	server.Stop()

	require.NoError(t, os.RemoveAll(directory))
	require.NoError(t, os.CopyFS(directory, os.DirFS(backup)))
	starts, now := on(50)
	require.Greater(t, now, seen, "the revision of the restored data must be greater")
	had(true, starts, first, copied)
	had(false, starts, first, seen)
	had(false, starts, second, seen)
	had(false, starts, second, copied)

	// The number of recorded starts is limited.
	for range maxStarts {
		starts, err = (&Handle{client: server.Client(), where: "there", prefix: "/shardplane"}).Start(t.Context())
		require.NoError(t, err)
	}
	had(false, starts, first, copied)
	require.Len(t, starts.known, maxStarts)

	put(t, server, "/garbage/"+startsKey, "garbage")
	starts, err = (&Handle{client: server.Client(), where: "there", prefix: "/garbage"}).Start(t.Context())
	require.NoError(t, err)
	had(true, starts, starts.Latest(), 1<<40)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = starts.Had(ctx, "unknown", 1)
	require.ErrorContains(t, err, "reading the starts from there")
}
