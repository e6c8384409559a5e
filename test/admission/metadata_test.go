package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestNamespacesAndMetadata(t *testing.T) {
	t.Parallel()
	all := sharedCluster.Get(t)
	a := clusters(t, all, "metadata-a")[0]
	a.defineWidgets(t)
	ctx := t.Context()

	t.Run("namespaces", func(t *testing.T) {
		create := func(namespace string) error {
			_, err := a.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, metav1.CreateOptions{})
			return err
		}
		err := create("missing")
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.EqualError(t, err, `namespaces "missing" not found`)
		for range 5 {
			// The informer cannot have received these yet.
			ns, err := a.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "fresh-"}}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.NoError(t, create(ns.Name))
		}

		a.createNamespace(t, "going")
		_, err = a.CoreV1().ConfigMaps("going").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stays", Finalizers: []string{"example.com/stay"}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, a.CoreV1().Namespaces().Delete(ctx, "going", metav1.DeleteOptions{}))
		err = create("going")
		require.True(t, apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), "%v", err)
		require.ErrorContains(t, err, "unable to create new content in namespace going because it is being terminated")
		_, err = a.CoreV1().ConfigMaps("going").Patch(ctx, "stays", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err, "an update was rejected")
		eventually(t, "the removal of the namespace", func() bool {
			_, err := a.CoreV1().Namespaces().Get(ctx, "going", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		a.createNamespace(t, "going")
		require.NoError(t, create("going"), "a recreated namespace does not accept objects immediately")

		err = a.CoreV1().Namespaces().Delete(ctx, "default", metav1.DeleteOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, "this namespace may not be deleted")
	})

	t.Run("a policy cannot set reserved labels", func(t *testing.T) {
		a.mutatingPolicy(t, "reserved", mutations(`[JSONPatch{op: "add", path: "/metadata/labels", value: {"tenancy.kcp.io/phase": "Ready"}}]`, ""), nil)
		eventually(t, "the mutation to be rejected", func() bool { return apierrors.IsForbidden(a.dryRun(ctx, "x")) })
		require.NoError(t, a.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Delete(ctx, "reserved", metav1.DeleteOptions{}))
		eventually(t, "the removal of the policy", func() bool { return a.dryRun(ctx, "x") == nil })
	})
}
