package registry_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

func TestNamespaceCreate(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, prefix string) {
		namespaces := client.CoreV1().Namespaces()

		// A client's status is ignored, and the system's finalizer is added.
		created, err := namespaces.Create(t.Context(), &corev1.Namespace{
			ObjectMeta: named(prefix),
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"example.com/mine"}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, corev1.NamespaceActive, created.Status.Phase)
		require.Equal(t, []corev1.FinalizerName{"example.com/mine", corev1.FinalizerKubernetes}, created.Spec.Finalizers)
		require.Equal(t, map[string]string{corev1.LabelMetadataName: prefix}, created.Labels)
		require.NotEmpty(t, created.UID)
		require.NotEmpty(t, created.ResourceVersion)
		require.False(t, created.CreationTimestamp.IsZero())

		// The label follows a generated name.
		generated := mustCreate(t, namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}})
		require.Equal(t, generated.Name, generated.Labels[corev1.LabelMetadataName])

		// It cannot be removed.
		generated.Labels = map[string]string{"a": "b"}
		generated.Spec.Finalizers = nil
		updated := mustUpdate(t, namespaces, generated)
		require.Equal(t, map[string]string{"a": "b", corev1.LabelMetadataName: generated.Name}, updated.Labels)
		require.Equal(t, []corev1.FinalizerName{corev1.FinalizerKubernetes}, updated.Spec.Finalizers)

		_, err = namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: named(prefix)}, metav1.CreateOptions{})
		requireRefusal(t, err, metav1.StatusReasonAlreadyExists, `namespaces "`+prefix+`" already exists`)
	})
}

func TestNamespaceInvalid(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	const label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
	const finalizer = `Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`
	for _, test := range []struct {
		namespace corev1.Namespace
		want      string
	}{
		{corev1.Namespace{ObjectMeta: named("a.b")}, `metadata.name: Invalid value: "a.b": must not contain dots`},
		{corev1.Namespace{ObjectMeta: named("A")}, `metadata.name: Invalid value: "A": ` + label},
		{corev1.Namespace{}, "metadata.name: Required value: name or generateName is required"},
		{corev1.Namespace{ObjectMeta: named("x"), Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"mine"}}},
			"spec.finalizers: " + finalizer},
		{corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Finalizers: []string{"mine"}}},
			"metadata.finalizers[0]: " + finalizer},
	} {
		_, err := client.CoreV1().Namespaces().Create(t.Context(), &test.namespace, metav1.CreateOptions{})
		requireInvalid(t, err, `Namespace "`+test.namespace.Name+`" is invalid: `, test.want)
	}
}

func TestNamespaceDelete(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, name string) {
		namespaces := client.CoreV1().Namespaces()
		ctx := t.Context()
		created := mustCreate(t, namespaces, &corev1.Namespace{ObjectMeta: named(name)})

		err := namespaces.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions("other"))
		requireRefusal(t, err, metav1.StatusReasonConflict,
			`Operation cannot be fulfilled on namespaces "`+name+`": Precondition failed: UID in precondition: other, UID in object meta: `+string(created.UID))
		err = namespaces.Delete(ctx, name, *metav1.NewRVDeletionPrecondition("1"))
		requireRefusal(t, err, metav1.StatusReasonConflict,
			`Operation cannot be fulfilled on namespaces "`+name+`": Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: `+created.ResourceVersion)

		// A dry run changes nothing.
		require.NoError(t, namespaces.Delete(ctx, name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
		got := mustGet(t, namespaces, name)
		require.Nil(t, got.DeletionTimestamp)

		// The response of a delete is the terminating namespace.
		body, err := client.CoreV1().RESTClient().Delete().Resource("namespaces").Name(name).SetHeader("Accept", "application/json").DoRaw(ctx)
		require.NoError(t, err)
		var response corev1.Namespace
		require.NoError(t, json.Unmarshal(body, &response))
		require.Equal(t, "Namespace", response.Kind)
		require.Equal(t, corev1.NamespaceTerminating, response.Status.Phase)
		require.NotNil(t, response.DeletionTimestamp)
		require.Equal(t, []corev1.FinalizerName{corev1.FinalizerKubernetes}, response.Spec.Finalizers)

		// Deleting again changes nothing.
		require.NoError(t, namespaces.Delete(ctx, name, metav1.DeleteOptions{}))
		terminating := mustGet(t, namespaces, name)
		require.Equal(t, response.ResourceVersion, terminating.ResourceVersion)

		// The status may have conditions, but not become active.
		terminating.Status.Conditions = []corev1.NamespaceCondition{{Type: corev1.NamespaceDeletionContentFailure, Status: corev1.ConditionFalse}}
		terminating, err = namespaces.UpdateStatus(ctx, terminating, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Len(t, terminating.Status.Conditions, 1)
		active := terminating.DeepCopy()
		active.Status.Phase = corev1.NamespaceActive
		_, err = namespaces.UpdateStatus(ctx, active, metav1.UpdateOptions{})
		requireRefusal(t, err, metav1.StatusReasonInvalid,
			`Namespace "`+name+`" is invalid: status.Phase: Invalid value: "Active": may only be 'Terminating' if `+"`deletionTimestamp` is not empty")

		// The namespace is removed with the last finalizer of its spec.
		finalized := terminating.DeepCopy()
		finalized.Spec.Finalizers = nil
		finalized.Status = corev1.NamespaceStatus{}
		finalized, err = namespaces.Finalize(ctx, finalized, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, corev1.NamespaceTerminating, finalized.Status.Phase)
		_, err = namespaces.Get(ctx, name, metav1.GetOptions{})
		requireRefusal(t, err, metav1.StatusReasonNotFound, `namespaces "`+name+`" not found`)
	})
}

// A namespace is removed when both kinds of finalizers are removed, in either order.
func TestNamespaceFinalizersOfMetadata(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	namespaces := client.CoreV1().Namespaces()
	ctx := t.Context()
	finalize := func(name string) error {
		namespace, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		namespace.Spec.Finalizers = nil
		_, err = namespaces.Finalize(ctx, namespace, metav1.UpdateOptions{})
		return err
	}
	release := func(name string) error {
		_, err := namespaces.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	for name, steps := range map[string][]func(string) error{
		"spec-first":     {finalize, release},
		"metadata-first": {release, finalize},
	} {
		t.Run(name, func(t *testing.T) {
			mustCreate(t, namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/hold"}}})
			require.NoError(t, namespaces.Delete(ctx, name, metav1.DeleteOptions{}))
			require.NoError(t, steps[0](name))
			mustGet(t, namespaces, name)
			require.NoError(t, steps[1](name))
			_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
			require.True(t, apierrors.IsNotFound(err), "%v", err)
		})
	}
	t.Run("active namespace without finalizers", func(t *testing.T) {
		mustCreate(t, namespaces, &corev1.Namespace{ObjectMeta: named("empty")})
		require.NoError(t, finalize("empty"))
		mustGet(t, namespaces, "empty")
		// Without finalizers, the first delete marks the namespace, and the second one removes it.
		require.NoError(t, namespaces.Delete(ctx, "empty", metav1.DeleteOptions{}))
		require.NoError(t, namespaces.Delete(ctx, "empty", metav1.DeleteOptions{}))
		_, err := namespaces.Get(ctx, "empty", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})
	t.Run("no deletecollection", func(t *testing.T) {
		err := client.CoreV1().RESTClient().Delete().Resource("namespaces").Do(ctx).Error()
		require.True(t, apierrors.IsMethodNotSupported(err), "%v", err)
	})
	t.Run("propagation", func(t *testing.T) {
		mustCreate(t, namespaces, &corev1.Namespace{ObjectMeta: named("orphans")})
		foreground := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}
		require.NoError(t, namespaces.Delete(ctx, "orphans", foreground))
		got := mustGet(t, namespaces, "orphans")
		require.Equal(t, []string{metav1.FinalizerDeleteDependents}, got.Finalizers)
	})
}

func TestNamespaceSelectors(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	ctx := t.Context()
	for _, name := range []string{"one", "two"} {
		mustCreate(t, client.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: named(name)})
	}
	require.NoError(t, client.CoreV1().Namespaces().Delete(ctx, "two", metav1.DeleteOptions{}))
	for selector, want := range map[string]string{
		"status.phase=Active": "one", "status.phase=Terminating": "two", "metadata.name=one": "one",
		"name=two": "two", "metadata.name!=one": "two",
	} {
		eventually(t, selector, func(ctx context.Context) bool {
			list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{FieldSelector: selector})
			return err == nil && namesOf(t, list) == want
		})
	}
	for _, label := range []string{"spec.nodeName", "metadata.namespace"} {
		_, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{FieldSelector: label + "=x"})
		requireRefusal(t, err, metav1.StatusReasonBadRequest, "field label not supported: "+label)
	}
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelMetadataName + "=one"})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
}
