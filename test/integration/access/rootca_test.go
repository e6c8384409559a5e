package access

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestRootCA holds that every namespace has what the front-proxy is verified with.
func TestRootCA(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	e.WorkspaceOn("root", "with-ca", "shard-1")
	scope := e.ProxyClient.Cluster(kit.Path("root:with-ca"))
	namespaces := kinds.Namespaces.In(scope)
	_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "more"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	awaitRootCA(t, e, scope, "default", string(e.Proxy().CAData))
	found := awaitRootCA(t, e, scope, "more", string(e.Proxy().CAData))
	require.NotEmpty(t, found.Annotations["kubernetes.io/description"])

	in := kinds.ConfigMaps.InNamespace(scope, "more")
	for name, spoil := range map[string]func() error{
		"changed": func() error {
			_, err := in.Patch(t.Context(), kit.RootCAConfigMap, kit.MergePatch, []byte(`{"data":{"ca.crt":"mine","more":"too"}}`), metav1.PatchOptions{})
			return err
		},
		"deleted": func() error { return in.Delete(t.Context(), kit.RootCAConfigMap, metav1.DeleteOptions{}) },
		"immutable": func() error {
			_, err := in.Patch(t.Context(), kit.RootCAConfigMap, kit.MergePatch, []byte(`{"data":{"ca.crt":"mine"},"immutable":true}`), metav1.PatchOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, spoil())
			awaitRootCA(t, e, scope, "more", string(e.Proxy().CAData))
		})
	}

	t.Run("a quota counts it", func(t *testing.T) {
		quotas := kinds.ResourceQuotas.InNamespace(scope, "more")
		_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "maps"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("1")},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		e.Eventually("it is counted", func() bool {
			quota, err := quotas.Get(t.Context(), "maps", metav1.GetOptions{})
			require.NoError(t, err)
			used := quota.Status.Used["count/configmaps"]
			return used.Value() == 1
		})
		e.Eventually("it has effect", func() bool { // admission hears of the count by an informer
			_, err = in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one-too-many"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err != nil
		})
		_, err = in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one-too-many"}}, metav1.CreateOptions{})
		require.ErrorContains(t, err, "exceeded quota")
		require.NoError(t, quotas.Delete(t.Context(), "maps", metav1.DeleteOptions{}))
	})

	t.Run("not in a namespace that ends", func(t *testing.T) {
		e.Eventually("a place is free again", func() bool {
			_, err = in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "keeps", Finalizers: []string{"example.com/keep"}}}, metav1.CreateOptions{})
			return err == nil
		})
		require.NoError(t, namespaces.Delete(t.Context(), "more", metav1.DeleteOptions{}))
		e.Eventually("all that can be deleted is", func() bool {
			list, err := in.List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			return len(list.Items) == 1 && list.Items[0].Name == "keeps"
		})
		_, err = in.Patch(t.Context(), "keeps", kit.MergePatch, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		e.Eventually("the namespace is gone", func() bool {
			_, err := namespaces.Get(t.Context(), "more", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})
}

// awaitRootCA waits until a namespace has a CA, and nothing else, in its ConfigMap.
func awaitRootCA(t *testing.T, e *kit.Env, scope client.Scope, namespace, ca string) *corev1.ConfigMap {
	t.Helper()
	var found *corev1.ConfigMap
	e.Eventually("namespace "+namespace+" has the CA", func() bool {
		var err error
		found, err = kinds.ConfigMaps.InNamespace(scope, namespace).Get(t.Context(), kit.RootCAConfigMap, metav1.GetOptions{})
		return err == nil && len(found.Data) == 1 && found.Data["ca.crt"] == ca && found.Immutable == nil
	})
	return found
}
