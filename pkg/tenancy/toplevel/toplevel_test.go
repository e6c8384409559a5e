package toplevel

import (
	"iter"
	"maps"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

func TestOf(t *testing.T) {
	for path, want := range map[string]string{
		"root": "", "root:org": "root:org", "root:org:team:sub": "root:org", "user": "", "user:alice": "user:alice", "user:alice:x:y": "user:alice",
		"system:admin": "", "system:homes": "", "2hg5y7x": "2hg5y7x", "2hg5y7x:x": "2hg5y7x", "": "",
	} {
		require.Equal(t, want, Of(path), path)
		require.Equal(t, want != "" && want != "root:org", IsHome(want), path)
	}
}

func TestSums(t *testing.T) {
	known := false
	paths := map[logicalcluster.Name]string{"root": "root", "a": "user:alice", "b": "user:alice:x", "c": "root:org", "d": "root:other", "e": "user:bob"}
	s := NewTopLevelSums(Config{
		Stored: func() (iter.Seq2[logicalcluster.Name, subtrees.Amount], bool) {
			return maps.All(map[logicalcluster.Name]subtrees.Amount{
				"root": {Objects: 9, Bytes: 1 << 30}, "a": {Objects: 1, Bytes: 100}, "b": {Objects: 2, Bytes: 900}, "c": {Objects: 1, Bytes: 10}, "d": {Objects: 1, Bytes: 10}, "e": {Bytes: 10}, "deleted": {Bytes: 1 << 30},
			}), known
		},
		PathOf:     func(cluster logicalcluster.Name) string { return paths[cluster] },
		Workspaces: func() map[logicalcluster.Name]int64 { return map[logicalcluster.Name]int64{"a": 1, "b": 2, "root": 5} },
	})
	_, ok := s.Usage("user:alice")
	require.False(t, ok)
	require.False(t, s.UsesMost("user:alice"))

	known = true
	s.current.Store(nil)
	used, ok := s.Usage("user:alice")
	require.True(t, ok)
	require.Equal(t, Usage{Amount: subtrees.Amount{Objects: 3, Bytes: 1000}, Workspaces: 3}, used)
	require.True(t, s.UsesMost("user:alice"))
	for _, owner := range []string{"root:org", "root:other", "user:bob", ""} {
		require.False(t, s.UsesMost(owner), owner)
	}
}
