package operations

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
