package conformance

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/shardplane/shardplane/test/harness"
)

const (
	// testTimeout is the timeout of conditions that a test waits for.
	testTimeout = 60 * time.Second
	tick        = 10 * time.Millisecond
)

// tenant contains the clients of one logical cluster.
type tenant struct {
	name   string
	config *rest.Config
	crds   apiextensionsclient.Interface
	dyn    dynamic.Interface
	kube   kubernetes.Interface
}

// newTenant returns the clients of a logical cluster.
func newTenant(t testing.TB, name string, config *rest.Config) *tenant {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return tenantOver(t, name, config, client)
}

// tenantOver is like newTenant, with an existing HTTP client.
func tenantOver(t testing.TB, name string, config *rest.Config, client *http.Client) *tenant {
	t.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	crds, err := apiextensionsclient.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	dyn, err := dynamic.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	kube, err := kubernetes.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	return &tenant{name: name, config: config, crds: crds, dyn: dyn, kube: kube}
}

// sharedShard is the shard of all tests. Each test has its own logical clusters.
var sharedShard = harness.Shared{Options: harness.Options{Without: []string{"front-proxy"}}}

// startShard starts a shard in the test process, for tests that examine the whole process.
func startShard(t testing.TB) *harness.Cluster {
	t.Helper()
	return harness.Start(t, harness.Options{Without: []string{"cache-server", "front-proxy"}})
}

// inParallel calls f for 0..n-1 with limited concurrency.
func inParallel(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	workqueue.ParallelizeUntil(t.Context(), 16, n, func(i int) { errs[i] = f(i) })
	require.NoError(t, errors.Join(errs...))
}
