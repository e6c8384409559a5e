package shards_test

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/shards"
	"github.com/shardplane/shardplane/test/background"
)

// testTimeout bounds the time to wait for events that are immediate on an idle machine.
const testTimeout = 60 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	rootPath = core.RootCluster.Path()
	insecure = &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
)

type (
	configMap = *corev1.ConfigMap
	options   = shards.Options[configMap]
)

type world struct {
	root   *clienttest.Server
	source shards.Source
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{root: clienttest.New(t, kinds.Scheme)}
	factory := factoryOf(t, w.root.URL)
	w.source = shards.FromRoot(factory.Cluster(rootPath))
	return w
}

func factoryOf(t testing.TB, url string) *client.Factory {
	t.Helper()
	config := rest.CopyConfig(insecure)
	config.Host = url
	factory, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	return factory
}

func (w *world) announce(t testing.TB, name, url string, edit ...func(*corev1alpha1.Shard)) {
	t.Helper()
	obj := &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: "root"}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: url},
	}
	for _, f := range edit {
		f(obj)
	}
	w.root.Put(t, kinds.Shards.GroupVersionResource, obj)
}

func (w *world) withdraw(t testing.TB, name string) {
	t.Helper()
	w.root.Delete(t, kinds.Shards.GroupVersionResource, "", core.RootCluster, "", name)
}

func alias(t testing.TB, server *clienttest.Server) string {
	t.Helper()
	other := httptest.NewUnstartedServer(server)
	other.EnableHTTP2 = true
	other.StartTLS()
	t.Cleanup(func() {
		server.Break()
		other.CloseClientConnections()
		other.Close()
	})
	return other.URL
}

func object(cluster logicalcluster.Name, name, content string, uid ...types.UID) configMap {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()}},
		Data:       map[string]string{"content": content},
	}
	if len(uid) > 0 {
		cm.UID = uid[0]
	}
	return cm
}

func put(t testing.TB, server *clienttest.Server, obj configMap) {
	t.Helper()
	server.Put(t, kinds.ConfigMaps.GroupVersionResource, obj)
}

func remove(t testing.TB, server *clienttest.Server, cluster logicalcluster.Name, name string) {
	t.Helper()
	server.Delete(t, kinds.ConfigMaps.GroupVersionResource, "", cluster, "default", name)
}

func keyOf(cluster logicalcluster.Name, name string) client.Key {
	return client.Key{Cluster: cluster, Namespace: "default", Name: name}
}

func startMulti(t testing.TB, source shards.Source, o options, before ...func(*shards.Multi[configMap])) (m *shards.Multi[configMap], stop func()) {
	t.Helper()
	m, err := shards.New(source, kinds.ConfigMaps, o)
	require.NoError(t, err)
	for _, f := range before {
		f(m)
	}
	return m, background.Run(t.Context(), t, m.Run)
}

func waitSynced(t testing.TB, m *shards.Multi[configMap], which shards.Which) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	require.NoError(t, m.WaitForSync(ctx, which))
}

func eventually(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, 5*time.Millisecond, "timeout, expected: "+what)
}

func has(t testing.TB, m *shards.Multi[configMap], key client.Key, shard, content string) {
	t.Helper()
	eventually(t, func() bool {
		obj, at, err := m.Lister().Find(key)
		return err == nil && at == shard && obj.Data["content"] == content
	}, key.String()+" on "+shard+": "+content)
}
