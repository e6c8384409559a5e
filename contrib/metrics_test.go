package contrib_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/cacheserver/relay"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication/health"
	"github.com/shardplane/shardplane/pkg/replication/push"
	"github.com/shardplane/shardplane/test/harness"
)

// two is a cluster like that of `shardplane dev`, for all tests. Those of the examples run after TestMetricsAreServed.
var two = harness.Shared{Options: harness.Options{Mode: harness.Processes, Shards: 2}}

func TestMain(m *testing.M) {
	code := harness.Main(m)
	if programsIn != "" {
		_ = os.RemoveAll(programsIn)
	}
	os.Exit(code)
}

// silent are metrics that only have series if errors occur or objects are relayed. The test checks that they are registered, in registries
// that are filled by code of the servers in this process.
var silent = []string{
	"apiserver_terminated_watchers_total",
	"shardplane_reconcile_failures_total",
	"shardplane_reconcile_panics_total",
	"shardplane_relay_up",
	"shardplane_replicated_refused_total",
	"shardplane_replication_cache_unavailable",
	"shardplane_replication_repairs_total",
	"shardplane_replication_restarts_total",
}

// TestMetricsAreServed checks that a running cluster serves all metrics and labels in the dashboard and the alerts.
func TestMetricsAreServed(t *testing.T) {
	uses, err := Uses()
	require.NoError(t, err)
	cluster := two.Get(t)
	use(t, cluster)

	// A shard only has metrics of a ring if it has replicas, so another member is used instead.
	replicas := takePart(t, cluster)
	shard := harness.Clientset(t, cluster.Shard(0), "*")
	eventually(t, "all metrics are served", func() error {
		// If a watch cache is not ready yet, it does not serve lists.
		if _, err := shard.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}); err != nil {
			return err
		}
		served := scrape(t, cluster)
		families, err := replicas.Gather()
		if err != nil {
			return err
		}
		served["shard"] = append(served["shard"], families...)
		gaps := slices.DeleteFunc(served.Missing(uses), func(g Gap) bool { return slices.Contains(silent, g.Metric) })
		if len(gaps) > 0 {
			return fmt.Errorf("%v", gaps)
		}
		return nil
	})

	cachermetrics.Register() // like servers with a watch cache
	own := prometheus.NewRegistry()
	reconcile.WithMetrics(t.Context(), own)
	limits.NewLimits(limits.Config{Metrics: own})
	health.NewCacheCheck(health.CheckedCache{Metrics: own})
	unused := harness.NewFactory(t, cluster.Cache())
	_, err = push.NewPushController(push.Config{Shard: "unused", Local: unused, Cache: unused, Metrics: own})
	require.NoError(t, err)
	_, err = relay.NewRelays(relay.Config{}, relay.Self{Replicas: unused, Metrics: own})
	require.NoError(t, err)
	for _, name := range silent {
		require.True(t, registered(own, name), "no component registers %s", name)
	}
}

// takePart runs a member of a ring until the test ends, and returns its metrics.
func takePart(t *testing.T, cluster *harness.Cluster) prometheus.Gatherer {
	t.Helper()
	registry := prometheus.NewRegistry()
	leases := harness.NewFactory(t, cluster.Shard(0))
	member, err := ring.New(ring.Config{
		Name: "measured", ID: "one", Key: client.ByCluster, Leases: leases.Cluster(logicalcluster.NewPath("root")), Namespace: "default", Metrics: registry,
	})
	require.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- member.Run(ctx) }()
	t.Cleanup(func() {
		leave()
		require.NoError(t, <-ended)
	})
	return registry
}

// use sends requests that change the metrics of the dashboard.
func use(t *testing.T, cluster *harness.Cluster) {
	t.Helper()
	proxy := harness.NewFactory(t, cluster.Proxy())
	for i, shard := range []string{"root", "shard-1"} {
		name := fmt.Sprintf("metrics-%d", i)
		harness.Workspace(t, proxy, "root", name, shard)
		useWorkspace(t, cluster, i, "root:"+name)
	}

	// A shard that pushes to the cache server, but is not registered.
	pushed := kinds.Shards.In(harness.NewFactory(t, cluster.Cache()).Shard("unregistered").Cluster(logicalcluster.NewPath("root")))
	harness.Create(t, pushed, &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: "unregistered"}})
	t.Cleanup(func() {
		require.NoError(t, pushed.Delete(context.Background(), "unregistered", metav1.DeleteOptions{}))
	})

	// A shard that is not available.
	cluster.Component("shard-1").Kill()
	_, err := harness.Clientset(t, cluster.Proxy(), "root:metrics-1").CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.Error(t, err)
	cluster.Component("shard-1").Start()
}

// useWorkspace sends requests to a workspace, and watches on all logical clusters of its shard.
func useWorkspace(t *testing.T, cluster *harness.Cluster, shard int, path string) {
	t.Helper()
	all := harness.Clientset(t, cluster.Shard(shard), "*")
	for _, selector := range []string{
		"",
		"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
		"shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')",
	} {
		watching, err := all.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{ShardSelector: selector})
		require.NoError(t, err)
		t.Cleanup(watching.Stop)
	}
	one := harness.Clientset(t, cluster.Proxy(), path)
	require.Eventually(t, func() bool {
		_, err := one.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
		return err == nil
	}, 30*time.Second, 20*time.Millisecond, "timeout waiting for a write in %s", path)
}

// scrape returns the metrics of all components in the Prometheus configuration.
func scrape(t *testing.T, cluster *harness.Cluster) Served {
	t.Helper()
	served := Served{}
	for _, target := range []struct {
		job, component string
		config         *rest.Config
	}{
		{"shard", "root", cluster.Shard(0)},
		{"shard", "shard-1", cluster.Shard(1)},
		{"cache-server", "cache-server", cluster.Shard(0)},
		{"front-proxy", "front-proxy", cluster.Shard(0)},
	} {
		client, err := rest.HTTPClientFor(target.config)
		require.NoError(t, err)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cluster.Component(target.component).URL+"/metrics", nil)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		var body bytes.Buffer
		_, err = body.ReadFrom(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode, "%s: %s", target.component, body.String())
		require.NoError(t, served.Add(target.job, &body))
	}
	return served
}

// registered reports whether a metric with this name is in own or in the global registry. If it is, another one cannot be registered.
func registered(own *prometheus.Registry, name string) bool {
	if own.Register(prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: "duplicate"}, []string{"no_metric_has_this_label"})) != nil {
		return true
	}
	other := metrics.NewGaugeVec(&metrics.GaugeOpts{Name: name, Help: "duplicate"}, []string{"no_metric_has_this_label"})
	return legacyregistry.Register(other) != nil
}
