package access

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestKubeSystem: workspaces whose type is universal, or extends it, start with the namespace
// kube-system and what every namespace has; others do not have it.
func TestKubeSystem(t *testing.T) {
	t.Parallel()
	e := kit.SharedUnchanged(t)
	root := kit.NewWorkspaceClient(e, "kube-system-organization") // of the type organization, which extends universal
	names := func(k kit.WorkspaceClient) []string {
		list, err := kinds.Namespaces.In(kit.NewFactory(t, k.Config).Cluster(kit.Path(k.ClusterName))).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return kit.NamespaceNames(list.Items)
	}
	require.Contains(t, names(root), root.ClusterName+"|kube-system", "it is there when the workspace is Ready")
	scope := kit.NewFactory(t, root.Config).Cluster(kit.Path(root.ClusterName))
	awaitRootCA(t, e, scope, "kube-system", string(e.Proxy().CAData))
	e.Eventually("it has its account", func() bool {
		_, err := kinds.ServiceAccounts.InNamespace(scope, "kube-system").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	rootItself := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: "root"}
	e.Eventually("root has it", func() bool { return slices.Contains(names(rootItself), "root|kube-system") })

	e.Eventually("that is all that there is in ConfigMaps", func() bool {
		items, _ := kit.Field(root.Get("/api/v1/configmaps"), "items").([]any)
		return len(items) == 2
	})

	old, err := kinds.Namespaces.In(scope).Get(t.Context(), "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, kinds.Namespaces.In(scope).Delete(t.Context(), "kube-system", metav1.DeleteOptions{}))
	e.Eventually("it comes back when it is deleted", func() bool {
		fresh, err := kinds.Namespaces.In(scope).Get(t.Context(), "kube-system", metav1.GetOptions{})
		return err == nil && fresh.UID != old.UID
	})

	const types = "/apis/tenancy.kcp.io/v1alpha1/workspacetypes"
	rootItself.Create(types, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"bare"},"spec":{}}`)
	var bare string
	e.Eventually("the type is known", func() bool {
		code, _ := rootItself.TryDo(http.MethodPost, "/apis/tenancy.kcp.io/v1alpha1/workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"bare"},"spec":{"type":{"name":"bare","path":"root"},"location":{"selector":{"matchLabels":{"name":"root"}}}}}`)
		return code == http.StatusCreated
	})
	e.Eventually("the workspace is Ready", func() bool {
		ws := rootItself.Get("/apis/tenancy.kcp.io/v1alpha1/workspaces/bare")
		bare, _ = kit.Field(ws, "spec", "cluster").(string)
		return kit.Field(ws, "status", "phase") == "Ready"
	})
	k := kit.WorkspaceClient{Env: e, Config: e.Shard(0), ClusterName: bare}
	require.Equal(t, []string{bare + "|default"}, names(k))
	rootItself.Do(http.StatusOK, http.MethodPatch, types+"/bare", `{"spec":{"extend":{"with":[{"name":"universal","path":"root"}]}}}`)
	e.Eventually("a workspace that is up gets it", func() bool { return slices.Contains(names(k), bare+"|kube-system") })
	_, err = kinds.Namespaces.In(kit.NewFactory(t, k.Config).Cluster(kit.Path(bare))).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}}, metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
}
