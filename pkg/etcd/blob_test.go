package etcd

import (
	"bytes"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestBlob verifies that a value with several keys is replaced atomically, and that no old keys remain.
func TestBlob(t *testing.T) {
	t.Parallel()
	h := dataOf(t, t.TempDir())
	b := h.Blob("some")
	_, err := b.Load(t.Context())
	require.ErrorIs(t, err, fs.ErrNotExist)
	keys := func() (all []string) {
		found, err := h.Client().Client.Get(t.Context(), b.prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		require.NoError(t, err)
		for _, kv := range found.Kvs {
			all = append(all, string(kv.Key))
		}
		return all
	}
	for i, size := range []int{0, 10, 3*partSize + 7, partSize, 2 * partSize, 5, 6, 7, 8, 9} {
		value := bytes.Repeat([]byte{byte('a' + i)}, size)
		require.NoError(t, b.Replace(t.Context(), value))
		loaded, err := b.Load(t.Context())
		require.NoError(t, err)
		require.True(t, bytes.Equal(value, loaded), size)
		require.Len(t, keys(), 1+(size+partSize-1)/partSize)
		for _, key := range keys() {
			require.NotContains(t, strings.TrimPrefix(key, b.prefix), "/")
		}
	}

	// Writers and readers detect a part that another server has deleted.
	require.NoError(t, b.Replace(t.Context(), []byte("kept")))
	_, err = h.Client().Client.Delete(t.Context(), b.parts(""), clientv3.WithPrefix())
	require.NoError(t, err)
	_, err = b.Load(t.Context())
	require.ErrorContains(t, err, "does not exist")

	require.ErrorContains(t, b.Replace(t.Context(), make([]byte, (maxParts+1)*partSize)), "at most")
	require.Len(t, keys(), 1)
}
