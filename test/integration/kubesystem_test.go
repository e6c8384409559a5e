package integration

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestKubeSystem: workspaces whose type is universal, or extends it, start with the namespace
// kube-system and what every namespace has; others do not have it.
func TestKubeSystem(t *testing.T) {
	e := newEnv(t, two.Get(t))
	root := newAPIKinds(e, "kube-system-organization") // of the type organization, which extends universal
	names := func(k apiKinds) []string {
		list, err := kinds.Namespaces.In(factory(t, k.config).Cluster(path(k.cluster))).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return namespaceNames(list.Items)
	}
	require.Contains(t, names(root), root.cluster+"|kube-system", "it is there when the workspace is Ready")
	scope := factory(t, root.config).Cluster(path(root.cluster))
	awaitRootCA(t, e, scope, "kube-system", string(e.Proxy().CAData))
	e.eventually("it has its account", func() bool {
		_, err := kinds.ServiceAccounts.InNamespace(scope, "kube-system").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	rootItself := apiKinds{env: e, config: e.Shard(0), cluster: "root"}
	e.eventually("root has it", func() bool { return slices.Contains(names(rootItself), "root|kube-system") })

	e.eventually("that is all that there is in ConfigMaps", func() bool {
		items, _ := field(root.get("/api/v1/configmaps"), "items").([]any)
		return len(items) == 2
	})

	old, err := kinds.Namespaces.In(scope).Get(t.Context(), "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, kinds.Namespaces.In(scope).Delete(t.Context(), "kube-system", metav1.DeleteOptions{}))
	e.eventually("it comes back when it is deleted", func() bool {
		fresh, err := kinds.Namespaces.In(scope).Get(t.Context(), "kube-system", metav1.GetOptions{})
		return err == nil && fresh.UID != old.UID
	})

	const types = "/apis/tenancy.kcp.io/v1alpha1/workspacetypes"
	rootItself.create(types, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"bare"},"spec":{}}`)
	var bare string
	e.eventually("the type is known", func() bool {
		code, _ := rootItself.status(http.MethodPost, "/apis/tenancy.kcp.io/v1alpha1/workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"bare"},"spec":{"type":{"name":"bare","path":"root"},"location":{"selector":{"matchLabels":{"name":"root"}}}}}`)
		return code == http.StatusCreated
	})
	e.eventually("the workspace is Ready", func() bool {
		ws := rootItself.get("/apis/tenancy.kcp.io/v1alpha1/workspaces/bare")
		bare, _ = field(ws, "spec", "cluster").(string)
		return field(ws, "status", "phase") == "Ready"
	})
	k := apiKinds{env: e, config: e.Shard(0), cluster: bare}
	require.Equal(t, []string{bare + "|default"}, names(k))
	rootItself.ask(http.StatusOK, http.MethodPatch, types+"/bare", `{"spec":{"extend":{"with":[{"name":"universal","path":"root"}]}}}`)
	e.eventually("a workspace that is up gets it", func() bool { return slices.Contains(names(k), bare+"|kube-system") })
	_, err = kinds.Namespaces.In(factory(t, k.config).Cluster(path(bare))).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}}, metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
}
