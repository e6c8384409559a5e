package replicas

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

const timeout = 30 * time.Second

// TestGetCurrent: restored objects are found. Other objects may exist until the cache server responds, unless the own
// shard would have them.
func TestGetCurrent(t *testing.T) {
	server := clienttest.New(t, kinds.Scheme)
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	informer := func() *client.Informer[*corev1.ConfigMap] {
		return kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	}
	own, others := informer(), informer()
	d := NewDual(own, others, DualOptions{Owns: func(cluster logicalcluster.Name) bool { return cluster == "here" }})
	require.NoError(t, own.Restore(nil))
	require.NoError(t, NewSaved(others).Restore([]json.RawMessage{[]byte(`{"metadata":{"name":"saved","namespace":"n","annotations":{"kcp.io/cluster":"c"}}}`)}))
	get := func(cluster logicalcluster.Name, name string) error {
		_, err := d.GetCurrent(cluster, "n", name)
		return err
	}
	require.NoError(t, get("c", "saved"))
	require.ErrorIs(t, get("c", "other"), client.ErrIncomplete)
	require.True(t, apierrors.IsNotFound(get("here", "other")))

	running(t, others)
	require.Eventually(t, others.Current, timeout, time.Millisecond)
	require.True(t, apierrors.IsNotFound(get("c", "saved")))
	require.True(t, apierrors.IsNotFound(get("c", "other")))
}
