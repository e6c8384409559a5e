package access

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestRootCA checks that every namespace contains the CA of the front-proxy.
func TestRootCA(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.WorkspaceOn("root", "with-ca", "shard-1")
	scope := e.ProxyClient.Cluster(kit.Path("root:with-ca"))
	namespaces := kinds.Namespaces.In(scope)
	harness.Create(t, namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "more"}})
	awaitRootCA(t, e, scope, "default", string(e.Proxy().CAData))
	found := awaitRootCA(t, e, scope, "more", string(e.Proxy().CAData))
	require.NotEmpty(t, found.Annotations["kubernetes.io/description"])

	in := kinds.ConfigMaps.InNamespace(scope, "more")
	// TestReconcile of pkg/controllers/rootca covers other changes.
	require.NoError(t, in.Delete(t.Context(), kit.RootCAConfigMap, metav1.DeleteOptions{}))
	awaitRootCA(t, e, scope, "more", string(e.Proxy().CAData))
}

// awaitRootCA waits until the ConfigMap of a namespace contains exactly the CA.
func awaitRootCA(t *testing.T, e *kit.Env, scope client.Scope, namespace, ca string) *corev1.ConfigMap {
	t.Helper()
	var found *corev1.ConfigMap
	e.Eventually("namespace "+namespace+" contains the CA", func() bool {
		var err error
		found, err = kinds.ConfigMaps.InNamespace(scope, namespace).Get(t.Context(), kit.RootCAConfigMap, metav1.GetOptions{})
		return err == nil && len(found.Data) == 1 && found.Data["ca.crt"] == ca && found.Immutable == nil
	})
	return found
}
