package bindings

import (
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestCatchUp: an index that lacks a binding, a change or a deletion has not caught up.
func TestCatchUp(t *testing.T) {
	w := newShard(t).run()
	for _, name := range []string{"one", "other", "third"} {
		w.put(bindingOf("consumer", name))
	}
	w.remove("consumer", "third")
	require.NoError(t, w.catchUp(t.Context()))

	listed, version, err := w.readAll(t.Context())
	require.NoError(t, err)
	require.Len(t, listed, 2)
	require.True(t, w.containsAll(listed, version))
	key := client.Key{Cluster: "consumer", Name: "one"}
	revision := listed[key]
	listed[key]++
	require.False(t, w.containsAll(listed, version), "an index that lacks a change must be detected")
	listed[key] = revision
	listed[client.Key{Cluster: "consumer", Name: "new"}] = version
	require.False(t, w.containsAll(listed, version), "an index that lacks a binding must be detected")
	delete(listed, client.Key{Cluster: "consumer", Name: "new"})
	delete(listed, key)
	require.False(t, w.containsAll(listed, version), "an index that lacks a deletion must be detected")
	listed[key] = revision
	w.put(&apisv1alpha2.APIBinding{ObjectMeta: bindingOf("consumer", "later").ObjectMeta})
	require.True(t, w.containsAll(listed, version), "later bindings must be ignored")
}
