package integration

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/harness"
)

// encryptionConfig encrypts secrets and cluster roles with the first of the
// providers, and reads what all of them wrote.
func encryptionConfig(providers string) string {
	return `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, clusterroles.rbac.authorization.k8s.io]
  providers: ` + providers + "\n"
}

const aKey = "{aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}"

// inFiles reports whether any file below a directory has the text.
func inFiles(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || bytes.Contains(content, []byte(text))
		return err
	}))
	return found
}

// TestSecretsAtRest holds that neither the data of a shard nor that of the cache
// server has what is to be encrypted in the clear once they are told so, in any
// logical cluster, and that what was stored before can be read.
func TestSecretsAtRest(t *testing.T) {
	t.Parallel()
	file := writeFile(t, t.TempDir(), "encryption.yaml", encryptionConfig("[{identity: {}}]"))
	e := start(t, harness.Options{EncryptionConfig: file})
	shard, cache := filepath.Join(e.Dir, ".kcp-0"), filepath.Join(e.Dir, ".kcp-cache")
	admin := kube(t, e.Proxy(), "root")
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
	e.eventually("the role is replicated", func() bool { return replicaOf("before") != nil })
	for _, dir := range []string{shard, cache} {
		e.eventually("what is not encrypted is in the files", func() bool { return inFiles(t, dir, "open-before") })
	}

	require.NoError(t, os.WriteFile(file, []byte(encryptionConfig("["+aKey+", {identity: {}}]")), 0o600))
	e.Component("cache-server").Restart()
	e.Component("root").Restart()
	e.workspace("root", "closed")
	for _, cluster := range []string{"root", "root:closed"} {
		in := kube(t, e.Proxy(), cluster)
		e.eventually("the front-proxy follows the shard again", func() bool {
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
	e.eventually("the role is replicated", func() bool { return replicaOf("after") != nil })
	e.Component("cache-server").Restart() // it has nothing in memory, and its files are written
	require.Equal(t, "nobody-reads-this", replicaOf("after").Rules[0].Verbs[0])
	require.Equal(t, "open-before", replicaOf("before").Rules[0].Verbs[0], "what was stored in the clear is read")
	require.True(t, inFiles(t, cache, "clusterroles/root/root/after"), "names are keys, which are not encrypted")
	e.eventually("the data is in the files", func() bool { return inFiles(t, shard, "everybody-reads-this") })
	for _, dir := range []string{shard, cache} {
		require.False(t, inFiles(t, dir, "nobody-reads-this"), dir)
	}
}
