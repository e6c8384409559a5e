package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestIdentity: requests for all logical clusters contain the identity, which is requested again after a 404. An
// informer lists everything after the identity has changed.
func TestIdentity(t *testing.T) {
	var (
		mu       sync.Mutex
		served   = "one"
		paths    []string
		requests atomic.Int32
		fails    atomic.Bool
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		path := "/clusters/*/apis/example.io/v1/widgets:" + served
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path != path:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
		case r.URL.Query().Get("watch") == "":
			_, _ = w.Write([]byte(`{"apiVersion":"example.io/v1","kind":"WidgetList","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"of-` + r.URL.Path[len(path)-3:] + `","annotations":{"kcp.io/cluster":"a"}}}]}`))
		default: // a short watch
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}))
	t.Cleanup(server.Close)
	factory := newFactory(t, &rest.Config{Host: server.URL})
	widgets := client.DefineResource[Widget, WidgetList](schema.GroupVersion{Group: "example.io", Version: "v1"}, "widgets", client.WithIdentity(func(context.Context) (string, error) {
		requests.Add(1)
		if fails.Load() {
			return "", errors.New("the export is unavailable")
		}
		mu.Lock()
		defer mu.Unlock()
		return served, nil
	}))
	list := func() error {
		_, err := widgets.In(factory.Wildcard()).List(t.Context(), metav1.ListOptions{})
		return err
	}
	require.NoError(t, list())
	require.NoError(t, list())
	require.EqualValues(t, 1, requests.Load(), "the identity must be requested once")

	informer := widgets.Informer(factory.Wildcard(), client.InformerOptions[*Widget]{DisableWatchList: true})
	run(t, informer)
	has := func(name string) bool {
		return slices.ContainsFunc(informer.Lister().List(nil), func(w *Widget) bool { return w.Name == name }) && informer.Lister().Len() == 1
	}
	require.Eventually(t, func() bool { return has("of-one") }, testTimeout, time.Millisecond)

	mu.Lock()
	served = "two"
	mu.Unlock()
	require.Error(t, list(), "a single request must return the error")
	require.NoError(t, list(), "the next request must use the new identity")
	require.Eventually(t, func() bool { return has("of-two") }, testTimeout, time.Millisecond)

	fails.Store(true)
	mu.Lock()
	served = "six"
	mu.Unlock()
	require.Error(t, list())
	require.ErrorContains(t, list(), "failed to get the identity of the resource: the export is unavailable")
	fails.Store(false)
	require.NoError(t, list())
	require.Eventually(t, func() bool { return has("of-six") }, testTimeout, time.Millisecond)

	mu.Lock()
	paths = nil
	mu.Unlock()
	_, err := widgets.In(factory.Cluster(logicalcluster.NewPath("a"))).List(t.Context(), metav1.ListOptions{})
	require.Error(t, err)
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, paths, "/clusters/a/apis/example.io/v1/widgets", "requests for one logical cluster must not contain the identity")
}

// TestReceived: bytes are counted by factory and by informer, and staleness is measured.
func TestReceived(t *testing.T) {
	server, _ := newServer(t)
	for _, name := range []string{"a", "b", "c"} {
		server.Put(t, gvr, configMap("one", "default", name))
	}
	registry := prometheus.NewRegistry()
	var all atomic.Int64
	factory := newFactory(t, server.ClientConfig(), client.WithMetrics(registry), client.WithByteCounter(func(n int) { all.Add(int64(n)) }))
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
	require.GreaterOrEqual(t, float64(all.Load()), first)

	server.Put(t, gvr, configMap("one", "default", "d"))
	require.Eventually(t, func() bool { return value("received_bytes_total") > first }, testTimeout, time.Millisecond)
	informers := value("received_bytes_total")
	before := all.Load()
	_, err := kinds.ConfigMaps.In(factory.Wildcard()).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, all.Load()-before, int64(400), "other requests must be counted for the factory")
	require.InDelta(t, informers, value("received_bytes_total"), 300, "other requests must not be counted for the informer")

	server.CloseClientConnections()
	server.Close()
	require.Eventually(t, func() bool { return value("stale_seconds") > 0 }, testTimeout, time.Millisecond)
}
