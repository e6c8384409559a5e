package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/storage"
)

func TestObjectKeyOf(t *testing.T) {
	const prefix = "/example.com/widgets/"
	for key, want := range map[string]storage.ObjectKey{
		prefix + "c/n/a":      {Cluster: "c", Namespace: "n", Name: "a"},
		prefix + "c/a":        {Cluster: "c", Name: "a"},
		prefix + ":1f/c/n/a":  {Identity: "1f", Cluster: "c", Namespace: "n", Name: "a"},
		prefix + ":1f/c/a:b":  {Identity: "1f", Cluster: "c", Name: "a:b"},
		prefix + "root/x/y.z": {Cluster: "root", Namespace: "x", Name: "y.z"},
	} {
		got, ok := storage.ObjectKeyOf(prefix, key)
		require.True(t, ok, key)
		require.Equal(t, want, got)
		require.Equal(t, key, storage.Key(prefix, got.Identity, got.Cluster, got.Namespace, got.Name))
	}
	for _, key := range []string{"/core/secrets/c/n/a", prefix + "~/n/a/uid", prefix + "c"} {
		_, ok := storage.ObjectKeyOf(prefix, key)
		require.False(t, ok, key)
	}
}
