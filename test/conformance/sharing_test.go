package conformance

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/test/harness"
)

// TestSharing checks that logical clusters with equal definitions share watch caches and
// goroutines.
func TestSharing(t *testing.T) {
	admin := startShard(t).Shard(0)
	client, err := rest.HTTPClientFor(admin)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	const kinds, clusters, group = 3, 20, "sharing.example.com"
	useCluster := func(cluster int) {
		name := fmt.Sprintf("sharing-%d", cluster)
		u := &user{tenant: tenantOver(t, name, harness.In(admin, name), client), t: t, admin: admin, group: group}
		harness.Create(t, u.kube.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
		for i := range kinds {
			d, err := u.tryDefine(bigCRD(t, group, i, 1<<10))
			require.NoError(t, err)
			resource := u.resource("v1", d.Spec.Names.Plural)
			_, err = resource.Namespace("default").Create(t.Context(), u.object(d.Spec.Names.Kind, "a", `{}`), metav1.CreateOptions{})
			require.NoError(t, err)
			list, err := resource.List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Len(t, list.Items, 1)
		}
	}
	caches := watchCaches(t)
	useCluster(0)
	before := runtime.NumGoroutine()
	for i := range clusters {
		useCluster(i + 1)
	}
	require.Equal(t, kinds, watchCaches(t)-caches)
	// Requests start temporary goroutines, but no cluster may add a permanent one.
	few := func() bool { return runtime.NumGoroutine() < before+clusters/2 }
	require.Eventually(t, func() bool { return testing.Short() || few() }, testTimeout, tick)
}

// watchCaches returns the number of created watch caches of custom resources.
func watchCaches(t testing.TB) int {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	found := 0
	for _, family := range families {
		if family.GetName() != "apiserver_watch_cache_initializations_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "group" && label.GetValue() == storage.Unnamed.Group {
					found += int(metric.GetCounter().GetValue())
				}
			}
		}
	}
	return found
}
