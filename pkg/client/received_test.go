package client_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestReceived: received bytes are counted by informer, and staleness is measured.
func TestReceived(t *testing.T) {
	server, _ := newServer(t)
	for _, name := range []string{"a", "b", "c"} {
		server.Put(t, gvr, configMap("one", "default", name))
	}
	registry := prometheus.NewRegistry()
	factory := newFactory(t, server.ClientConfig(), client.WithMetrics(registry))
	value := func(name string) float64 {
		families, err := registry.Gather()
		if err != nil {
			return -1
		}
		for _, f := range families {
			if f.GetName() == "shardplane_client_informer_"+name {
				return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return -1
	}
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	runSynced(t, informer)
	require.Eventually(t, func() bool { return value("stale_seconds") == 0 }, testTimeout, time.Millisecond)
	first := value("received_bytes_total")
	require.GreaterOrEqual(t, first, 300.0)

	server.Put(t, gvr, configMap("one", "default", "d"))
	require.Eventually(t, func() bool { return value("received_bytes_total") > first }, testTimeout, time.Millisecond)
	informers := value("received_bytes_total")
	_, err := kinds.ConfigMaps.In(factory.Wildcard()).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.InDelta(t, informers, value("received_bytes_total"), 300, "other requests must not be counted for the informer")

	server.CloseClientConnections()
	server.Close()
	require.Eventually(t, func() bool { return value("stale_seconds") > 0 }, testTimeout, time.Millisecond)
}
