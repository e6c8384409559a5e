package storage

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestAny: etcd is asked for many prefixes at once, and each ends where the name of a logical
// cluster, or of a namespace, does.
func TestAny(t *testing.T) {
	b := backendOf(t, BackendConfig{})
	s := open(t, b, podsGR)
	create(in(t.Context(), "aa"), t, s, newPod("ns", "one"))
	create(request.WithIdentity(in(t.Context(), "bound"), podsGR, "1f"), t, s, newPod("ns", "one"))
	const root = "/pods/"
	want := map[string]bool{
		Key(root, "", "aa", "", ""): true, Key(root, "", "a", "", ""): false, Key(root, "", "aaa", "", ""): false,
		Key(root, "", "aa", "ns", ""): true, Key(root, "", "aa", "n", ""): false,
		Key(root, "1f", "bound", "", ""): true, Key(root, "", "bound", "", ""): false, Key(root, "1f", "aa", "", ""): false,
	}
	var prefixes []string
	for prefix := range want {
		prefixes = append(prefixes, prefix)
	}
	for len(prefixes) < 2*maxOps {
		prefixes = append(prefixes, prefixes...)
	}
	all, err := b.Keys(t.Context(), root, 10)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{Key(root, "", "aa", "ns", "one"), Key(root, "1f", "bound", "ns", "one")}, all)
	found, err := b.Any(t.Context(), prefixes)
	require.NoError(t, err)
	require.Len(t, found, len(prefixes))
	for i, prefix := range prefixes {
		require.Equal(t, want[prefix], found[i], prefix)
	}
	found, err = b.Any(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, found)
}

// TestDeleteAll: what one logical cluster has below a prefix goes, a part at a time, and watches see it.
func TestDeleteAll(t *testing.T) {
	b := backendOf(t, BackendConfig{})
	s := open(t, b, podsGR)
	const root = "/pods/"
	bound := request.WithIdentity(in(t.Context(), "left"), podsGR, "1f")
	for _, name := range []string{"one", "two", "three"} {
		create(in(t.Context(), "left"), t, s, newPod("ns", name))
	}
	create(bound, t, s, newPod("ns", "bound"))
	create(in(t.Context(), "lefter"), t, s, newPod("ns", "other"))
	create(in(t.Context(), "lef"), t, s, newPod("ns", "other"))
	for _, invalid := range []logicalcluster.Name{"", "left/ns", ":1f"} {
		_, err := b.DeleteAll(t.Context(), root, invalid, 10)
		require.ErrorContains(t, err, "invalid name")
	}
	for _, want := range []int64{2, 1, 0} {
		deleted, err := b.DeleteAll(t.Context(), root, "left", 2)
		require.NoError(t, err)
		require.Equal(t, want, deleted)
	}
	deleted, err := b.DeleteAll(t.Context(), root+":1f/", "lef", 2)
	require.NoError(t, err)
	require.Zero(t, deleted)
	keys, err := b.Keys(t.Context(), root, 10)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{Key(root, "1f", "left", "ns", "bound"), Key(root, "", "lefter", "ns", "other"), Key(root, "", "lef", "ns", "other")}, keys)
	deleted, err = b.DeleteAll(t.Context(), root+":1f/", "left", 2)
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted)
}
