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

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

const testTimeout = 30 * time.Second

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

func newServer(t testing.TB) (*clienttest.Server, *client.Factory) {
	t.Helper()
	server := clienttest.New(t, kinds.Scheme)
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	return server, factory
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
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(testTimeout):
			t.Fatal("did not stop")
		}
	}
	t.Cleanup(stop)
	return stop
}

func waitSynced(t testing.TB, r client.Runner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	require.NoError(t, r.WaitForSync(ctx))
}

func eventually(t testing.TB, condition func() bool, msg string) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, 5*time.Millisecond, msg)
}
