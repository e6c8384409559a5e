package operations

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestSecretsAtRest: neither the data of a shard nor that of the cache server contains encrypted
// resources in the clear, in any logical cluster.
func TestSecretsAtRest(t *testing.T) {
	t.Parallel()
	e := sharedWithEverything(t)
	e.WorkspaceOn("root", "closed", "root")
	for _, cluster := range []string{"root", "root:closed"} {
		in := kit.ClusterClientset(t, e.Shard(0), cluster)
		_, err := in.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "at-rest"}, StringData: map[string]string{"k": "nobody-reads-this"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		got, err := in.CoreV1().Secrets("default").Get(t.Context(), "at-rest", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "nobody-reads-this", string(got.Data["k"]))
	}
	admin := kit.ClusterClientset(t, e.Shard(0), "root")
	_, err := admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "at-rest", Annotations: map[string]string{"internal.kcp.io/replicate": "test"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"nobody-reads-this"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	// Files are written in the order of the requests.
	_, err = admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "at-rest"}, Data: map[string]string{"k": "everybody-reads-this"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for dir, last := range map[string]string{
		".kcp-0":     "everybody-reads-this",
		".kcp-cache": "clusterroles/root/root/at-rest", // names are keys, which are not encrypted
	} {
		dir = filepath.Join(e.Dir, dir)
		e.Eventually("the data is in the files", func() bool { return kit.StoredInFiles(t, dir, last) })
		require.False(t, kit.StoredInFiles(t, dir, "nobody-reads-this"), dir)
	}
}

// TestEncryptionBegins: what was stored before resources are encrypted can be read, and what is
// written afterwards is encrypted.
func TestEncryptionBegins(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: restarts servers")
	}
	t.Parallel()
	// A cluster of its own, because the test restarts its servers.
	file := kit.WriteFile(t, t.TempDir(), "encryption.yaml", kit.EncryptionConfig("[{identity: {}}]"))
	e := kit.Start(t, harness.Options{EncryptionConfig: file})
	shard, cache := filepath.Join(e.Dir, ".kcp-0"), filepath.Join(e.Dir, ".kcp-cache")
	admin := kit.ClusterClientset(t, e.Proxy(), "root")
	role := func(name, text string) {
		_, err := admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"internal.kcp.io/replicate": "test"}},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{text}, APIGroups: []string{""}, Resources: []string{"configmaps"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	replicaOf := func(name string) *rbacv1.ClusterRole {
		config := e.Cache()
		config.Host += "/services/cache/shards/root/clusters/root"
		got, err := clientset(t, config).RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return got
	}
	role("before", "open-before")
	e.Eventually("the role is replicated", func() bool { return replicaOf("before") != nil })
	for _, dir := range []string{shard, cache} {
		e.Eventually("what is not encrypted is in the files", func() bool { return kit.StoredInFiles(t, dir, "open-before") })
	}

	require.NoError(t, os.WriteFile(file, []byte(kit.EncryptionConfig("["+kit.EncryptionKey+", {identity: {}}]")), 0o600))
	e.Component("cache-server").Restart()
	e.Component("root").Restart()
	e.Workspace("root", "closed")
	for _, cluster := range []string{"root", "root:closed"} {
		in := kit.ClusterClientset(t, e.Proxy(), cluster)
		e.Eventually("the front-proxy follows the shard again", func() bool {
			_, err := in.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
			return err == nil
		})
		_, err := in.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "nobody-reads-this"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = in.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"k": "everybody-reads-this"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		got, err := in.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "nobody-reads-this", string(got.Data["k"]))
	}
	role("after", "nobody-reads-this")
	e.Eventually("the role is replicated", func() bool { return replicaOf("after") != nil })
	e.Component("cache-server").Restart() // it has nothing in memory, and its files are written
	require.Equal(t, "nobody-reads-this", replicaOf("after").Rules[0].Verbs[0])
	require.Equal(t, "open-before", replicaOf("before").Rules[0].Verbs[0], "what was stored in the clear is read")
	require.True(t, kit.StoredInFiles(t, cache, "clusterroles/root/root/after"), "names are keys, which are not encrypted")
	e.Eventually("the data is in the files", func() bool { return kit.StoredInFiles(t, shard, "everybody-reads-this") })
	for _, dir := range []string{shard, cache} {
		require.False(t, kit.StoredInFiles(t, dir, "nobody-reads-this"), dir)
	}
}
