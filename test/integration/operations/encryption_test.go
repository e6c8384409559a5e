package operations

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestSecretsAtRest checks that the data of shards and cache server does not contain encrypted resources in clear text.
func TestSecretsAtRest(t *testing.T) {
	t.Parallel()
	e := sharedWithEverything(t)
	e.WorkspaceOn("root", "closed", "root")
	for _, cluster := range []string{"root", "root:closed"} {
		in := harness.Clientset(t, e.Shard(0), cluster)
		harness.Create(t, in.CoreV1().Secrets("default"), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "at-rest"}, StringData: map[string]string{"k": "secret-content"},
		})
		got := harness.Get(t, in.CoreV1().Secrets("default"), "at-rest")
		require.Equal(t, "secret-content", string(got.Data["k"]))
	}
	admin := harness.Clientset(t, e.Shard(0), "root")
	harness.Create(t, admin.RbacV1().ClusterRoles(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "at-rest", Annotations: map[string]string{"internal.kcp.io/replicate": "test"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"secret-content"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}},
	})
	// The files contain writes in the order of the requests.
	harness.Create(t, admin.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "at-rest"}, Data: map[string]string{"k": "public-content"},
	})
	for dir, last := range map[string]string{
		".kcp-0":     "public-content",
		".kcp-cache": "clusterroles/root/root/at-rest", // names are keys, which are not encrypted
	} {
		dir = filepath.Join(e.Dir, dir)
		e.Eventually("the files contain the last write", func() bool { return kit.StoredInFiles(t, dir, last) })
		require.False(t, kit.StoredInFiles(t, dir, "secret-content"), dir)
	}
}
