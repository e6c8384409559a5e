package bindings

import (
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// An index that has read all bindings has caught up with them; one that lacks a binding, a
// change or a deletion has not.
func TestCatchUp(t *testing.T) {
	w := newShard(t).run()
	for _, name := range []string{"one", "other", "third"} {
		w.put(bindingOf("consumer", name))
	}
	w.remove("consumer", "third")
	require.NoError(t, w.catchUp(t.Context()))

	there, version, err := w.readAll(t.Context())
	require.NoError(t, err)
	require.Len(t, there, 2)
	require.True(t, w.has(there, version))
	key := client.Key{Cluster: "consumer", Name: "one"}
	revision := there[key]
	there[key]++
	require.False(t, w.has(there, version), "it lacks a change")
	there[key] = revision
	there[client.Key{Cluster: "consumer", Name: "new"}] = version
	require.False(t, w.has(there, version), "it lacks a binding")
	delete(there, client.Key{Cluster: "consumer", Name: "new"})
	delete(there, key)
	require.False(t, w.has(there, version), "it lacks a deletion")
	there[key] = revision
	w.put(&apisv1alpha2.APIBinding{ObjectMeta: bindingOf("consumer", "later").ObjectMeta})
	require.True(t, w.has(there, version), "what came later does not matter")
}
