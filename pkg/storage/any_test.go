package storage

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestAny verifies that prefixes end at the name of a logical cluster or a namespace, also with several requests.
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
	requireKeys(t, b, root, Key(root, "", "aa", "ns", "one"), Key(root, "1f", "bound", "ns", "one"))
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

func requireKeys(t *testing.T, b *Backend, prefix string, want ...string) {
	t.Helper()
	keys, err := b.Keys(t.Context(), prefix, 10)
	require.NoError(t, err)
	require.ElementsMatch(t, want, keys)
}

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
	other := Key(root, "1f", "left", "ns", "bound")
	requireKeys(t, b, root, other, Key(root, "", "lefter", "ns", "other"), Key(root, "", "lef", "ns", "other"))
	deleted, err = b.DeleteAll(t.Context(), root+":1f/", "left", 2)
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted)
}

// TestDeleteFree verifies that objects without finalizers are deleted in any encoding, and unreadable ones are kept.
func TestDeleteFree(t *testing.T) {
	b := backendOf(t, BackendConfig{})
	s := open(t, b, podsGR)
	const root = "/pods/"
	prefix := Key(root, "", "going", "", "")
	free := func() bool {
		t.Helper()
		others, err := b.DeleteFree(t.Context(), prefix)
		require.NoError(t, err)
		return others
	}
	require.False(t, free())
	for n := range freePage + 2 {
		create(in(t.Context(), "going"), t, s, newPod("ns", strconv.Itoa(n)))
	}
	create(in(t.Context(), "goingon"), t, s, newPod("ns", "other"))
	require.False(t, free())
	requireKeys(t, b, prefix) // of all pages

	held := newPod("ns", "held")
	held.Finalizers = []string{"example.com/keep"}
	create(in(t.Context(), "going"), t, s, held)
	create(in(t.Context(), "going"), t, s, newPod("ns", "last"))
	damaged := Key(root, "", "going", "ns", "damaged")
	_, err := b.cfg.Client.Put(t.Context(), b.cfg.Prefix+damaged, "k8s\x00\xff")
	require.NoError(t, err)
	require.True(t, free())
	requireKeys(t, b, root, damaged, Key(root, "", "going", "ns", "held"), Key(root, "", "goingon", "ns", "other"))
}

// meddler calls read when an object is read.
type meddler struct {
	sealer
	read func(key string)
}

func (m *meddler) TransformerForResource(schema.GroupResource) value.Transformer { return m }

func (m *meddler) TransformFromStorage(_ context.Context, data []byte, key value.Context) (out []byte, stale bool, err error) {
	m.read(string(key.AuthenticatedData()))
	return data, false, nil
}

// TestDeleteFreeAsRead verifies that objects which change between the read and the deletion are kept.
func TestDeleteFreeAsRead(t *testing.T) {
	m := &meddler{}
	b := backendOf(t, BackendConfig{Transformers: m})
	put := func(key, stored string) {
		_, err := b.cfg.Client.Put(t.Context(), key, stored)
		require.NoError(t, err)
	}
	m.read = func(key string) {
		if strings.HasSuffix(key, "/changed") {
			put(key, `{"metadata":{"finalizers":["example.com/keep"]}}`)
		}
	}
	const prefix = "/pods/going/"
	for _, name := range []string{"before", "changed", "later"} {
		put(b.cfg.Prefix+prefix+name, `{"metadata":{}}`)
	}
	others, err := b.DeleteFree(t.Context(), prefix)
	require.NoError(t, err)
	require.True(t, others)
	requireKeys(t, b, prefix, prefix+"changed")
}
