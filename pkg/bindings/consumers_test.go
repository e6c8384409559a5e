package bindings

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestConsumers: listeners are notified once of each export with bindings, even if nothing is bound.
func TestConsumers(t *testing.T) {
	x := offline(t)
	e, other := client.Key{Cluster: "provider", Name: "e"}, client.Key{Cluster: "provider", Name: "other"}
	var notified []client.Key
	stop := x.FollowConsumers(func(export client.Key) {
		_ = x.Consumed(export) // may be called here
		notified = append(notified, export)
	})
	put := func(cluster, export, provider string, bound bool) {
		b := bindingOf(cluster, "b")
		if bound {
			b.Status.BoundResources = append(b.Status.BoundResources, boundTo(widgets, "one", "h"))
		}
		b.Spec.Reference.Export.Name, b.Status.APIExportClusterName = export, provider
		x.put(b, initialRevision)
	}
	put("a", "e", "", false)
	require.Empty(t, notified, "bindings without a resolved export must not notify")
	put("a", "e", "provider", false)
	put("a", "e", "provider", true)
	put("b", "e", "provider", false)
	require.Equal(t, []client.Key{e}, notified)
	require.True(t, x.Consumed(e))
	put("b", "other", "provider", true)
	require.Equal(t, []client.Key{e, other}, notified)

	var known []client.Key
	x.FollowConsumers(func(export client.Key) { known = append(known, export) })()
	require.ElementsMatch(t, []client.Key{e, other}, known)

	notified = nil
	for _, cluster := range []logicalcluster.Name{"a", "b"} {
		x.replace(cluster, "b", nil, initialRevision)
	}
	require.Equal(t, []client.Key{e, other}, notified)
	require.False(t, x.Consumed(e))
	require.Empty(t, x.exports)
	stop()
}
