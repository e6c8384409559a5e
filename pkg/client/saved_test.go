package client_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestSavedInformers: an informer starts with the objects saved by another one, and corrects them when the server
// responds.
func TestSavedInformers(t *testing.T) {
	server := clienttest.New(t, kinds.Scheme)
	put := func(name, v string) {
		server.Put(t, gvr, configMap("c", "n", name, value(v)))
	}
	informer := func(config *rest.Config) *client.Informer[*corev1.ConfigMap] {
		return kinds.ConfigMaps.Informer(newFactory(t, config).Wildcard(), client.InformerOptions[*corev1.ConfigMap]{Keep: func(c *corev1.ConfigMap) bool { return c.Name != "dropped" }})
	}
	get := func(i *client.Informer[*corev1.ConfigMap], name string) string {
		obj, err := i.Lister().Get(client.Key{Cluster: "c", Namespace: "n", Name: name})
		if err != nil {
			return "none"
		}
		return obj.Data["v"]
	}
	put("kept", "1")
	put("changed", "1")
	put("deleted", "1")
	first := informer(server.ClientConfig())
	_, err := first.Save()
	require.ErrorIs(t, err, client.ErrIncomplete)
	runSynced(t, first)
	saved, err := first.Save()
	require.NoError(t, err)
	require.Len(t, saved, 3)

	// Without a server.
	alone := informer(&rest.Config{Host: "https://127.0.0.1:1"})
	require.Error(t, alone.Restore(append(saved[:1:1], []byte("["))))
	require.False(t, alone.HasSynced())
	require.Equal(t, 0, alone.Lister().Len())
	require.NoError(t, alone.Restore(saved))
	require.True(t, alone.HasSynced())
	require.False(t, alone.Current())
	require.Equal(t, "1", get(alone, "deleted"))
	_, err = alone.Save()
	require.ErrorIs(t, err, client.ErrIncomplete, "a restored state must not be saved again")

	// With a server whose objects have changed.
	put("changed", "2")
	put("new", "1")
	server.Delete(t, gvr, "", "c", "n", "deleted")
	later := informer(server.ClientConfig())
	notified := map[string]int{}
	later.AddKeyHandler(func(key client.Key) { notified[key.Name]++ }, nil)
	require.NoError(t, later.Restore(saved))
	require.Equal(t, map[string]int{"kept": 1, "changed": 1, "deleted": 1}, notified)
	run(t, later)
	require.Eventually(t, later.Current, testTimeout, time.Millisecond)
	require.Equal(t, []string{"1", "2", "none", "1"}, []string{get(later, "kept"), get(later, "changed"), get(later, "deleted"), get(later, "new")})
	later.Pause(func() {
		require.Equal(t, map[string]int{"kept": 1, "changed": 2, "deleted": 2, "new": 1}, notified, "unchanged objects must not be notified")
	})
}
