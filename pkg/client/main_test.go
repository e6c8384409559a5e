package client_test

import (
	"context"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/background"
)

const testTimeout = 30 * time.Second

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// gvr is the resource of configMap.
var gvr = kinds.ConfigMaps.GroupVersionResource

func newServer(t testing.TB) (*clienttest.Server, *client.Factory) {
	t.Helper()
	server := clienttest.New(t, kinds.Scheme)
	return server, newFactory(t, server.ClientConfig())
}

func newFactory(t testing.TB, config *rest.Config, options ...client.FactoryOption) *client.Factory {
	t.Helper()
	factory, err := client.NewFactory(config, options...)
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	return factory
}

func configMap(cluster logicalcluster.Name, namespace, name string, edit ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()},
	}}
	for _, f := range edit {
		f(cm)
	}
	return cm
}

// run runs r until the test ends, or until the function it returns is called.
func run(t testing.TB, r interface {
	Run(ctx context.Context) error
}) (stop func()) {
	t.Helper()
	return background.Run(t.Context(), t, r.Run)
}

// runSynced runs informers until the test ends, and waits until they have synced.
func runSynced(t testing.TB, informers ...client.Runner) {
	t.Helper()
	for _, r := range informers {
		run(t, r)
	}
	waitSynced(t, informers...)
}

func waitSynced(t testing.TB, informers ...client.Runner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for _, r := range informers {
		require.NoError(t, r.WaitForSync(ctx))
	}
}

func eventually(t testing.TB, condition func() bool, msg string) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, 5*time.Millisecond, "timeout, expected: "+msg)
}
