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
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
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

// two is what `shardplane dev` runs, for all tests; those of the examples run after this one.
var two = harness.Shared{Options: harness.Options{Mode: harness.Processes, Shards: 2}}

func TestMain(m *testing.M) {
	code := harness.Main(m)
	if programsIn != "" {
		_ = os.RemoveAll(programsIn)
	}
	os.Exit(code)
}

// silent are metrics that have no series as long as nothing goes wrong, or nothing is relayed. They
// must exist all the same: the test looks them up in registries that code of the servers has
// filled in this process.
var silent = []string{
	"apiserver_terminated_watchers_total",
	"shardplane_reconcile_failures_total",
	"shardplane_reconcile_panics_total",
	"shardplane_relay_up",
	"shardplane_replicated_refused_total",
	"shardplane_replication_cache_trouble",
	"shardplane_replication_repairs_total",
	"shardplane_replication_restarts_total",
}

// TestMetricsAreServed holds every metric and label of the dashboard and the
// alerts against what the components of a running cluster serve.
func TestMetricsAreServed(t *testing.T) {
	uses, err := Uses()
	require.NoError(t, err)
	cluster := two.Get(t)
	use(t, cluster)

	// A shard takes part in a ring, and has its metrics, only where it has replicas: another member
	// stands for it.
	replicas := takePart(t, cluster)
	shard, err := kubernetes.NewForConfig(harness.In(cluster.Shard(0), "*"))
	require.NoError(t, err)
	eventually(t, "all that is used is served", func() error {
		// A watch cache that is not ready yet leaves lists to etcd.
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

	cachermetrics.Register() // as each server with a watch cache does
	own := prometheus.NewRegistry()
	reconcile.WithMetrics(t.Context(), own)
	limits.New(limits.Config{Metrics: own})
	health.NewCacheCheck(health.CheckedCache{Metrics: own})
	unused, err := client.NewFactory(cluster.Cache())
	require.NoError(t, err)
	_, err = push.New(push.Config{Shard: "unused", Local: unused, Cache: unused, Metrics: own})
	require.NoError(t, err)
	_, err = relay.New(relay.Config{}, relay.Self{Replicas: unused, Metrics: own})
	require.NoError(t, err)
	for _, name := range silent {
		require.True(t, registered(own, name), "no component registers %s", name)
	}
}

// takePart runs a member of a ring until the test ends, and returns its metrics.
func takePart(t *testing.T, cluster *harness.Cluster) prometheus.Gatherer {
	t.Helper()
	registry := prometheus.NewRegistry()
	leases, err := client.NewFactory(cluster.Shard(0))
	require.NoError(t, err)
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
		leases.CloseIdleConnections()
	})
	return registry
}

// use makes the cluster do what the dashboard shows.
func use(t *testing.T, cluster *harness.Cluster) {
	t.Helper()
	root, err := dynamic.NewForConfig(harness.In(cluster.Proxy(), "root"))
	require.NoError(t, err)
	workspaces := root.Resource(tenancyv1alpha1.SchemeGroupVersion.WithResource("workspaces"))
	for i, shard := range []string{"root", "shard-1"} {
		name := fmt.Sprintf("metrics-%d", i)
		_, err := workspaces.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": tenancyv1alpha1.SchemeGroupVersion.String(),
			"kind":       "Workspace",
			"metadata":   map[string]any{"name": name},
			"spec":       map[string]any{"location": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"name": shard}}}},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			workspace, err := workspaces.Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			phase, _, _ := unstructured.NestedString(workspace.Object, "status", "phase")
			return phase == string(corev1alpha1.LogicalClusterPhaseReady)
		}, 30*time.Second, 20*time.Millisecond, "workspace %s is not ready", name)
		useWorkspace(t, cluster, i, "root:"+name)
	}

	// A shard that pushes to the cache server and is not registered.
	cache, err := client.NewFactory(cluster.Cache())
	require.NoError(t, err)
	t.Cleanup(cache.CloseIdleConnections)
	pushed := kinds.Shards.In(cache.Shard("stranger").Cluster(logicalcluster.NewPath("root")))
	_, err = pushed.Create(t.Context(), &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pushed.Delete(context.Background(), "stranger", metav1.DeleteOptions{})) })

	// A shard that does not answer.
	cluster.Component("shard-1").Kill()
	gone, err := kubernetes.NewForConfig(harness.In(cluster.Proxy(), "root:metrics-1"))
	require.NoError(t, err)
	_, err = gone.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.Error(t, err)
	cluster.Component("shard-1").Start()
}

// useWorkspace writes, lists and watches in a workspace and across its shard.
func useWorkspace(t *testing.T, cluster *harness.Cluster, shard int, path string) {
	t.Helper()
	all, err := kubernetes.NewForConfig(harness.In(cluster.Shard(shard), "*"))
	require.NoError(t, err)
	for _, selector := range []string{
		"",
		"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
		"shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')",
	} {
		watching, err := all.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{ShardSelector: selector})
		require.NoError(t, err)
		t.Cleanup(watching.Stop)
	}
	one, err := kubernetes.NewForConfig(harness.In(cluster.Proxy(), path))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := one.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
		return err == nil
	}, 30*time.Second, 20*time.Millisecond, "%s cannot be written to", path)
}

// scrape asks every component for its metrics, as the Prometheus configuration
// says it.
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

// registered reports whether a metric of this name is in a registry, or that of the process: another one
// of that name cannot be added then.
func registered(own *prometheus.Registry, name string) bool {
	if own.Register(prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: "not the real one"}, []string{"no_metric_has_this_label"})) != nil {
		return true
	}
	other := metrics.NewGaugeVec(&metrics.GaugeOpts{Name: name, Help: "not the real one"}, []string{"no_metric_has_this_label"})
	return legacyregistry.Register(other) != nil
}
