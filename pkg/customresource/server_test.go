package customresource

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestEstablishedInOneWrite(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	crd := widgetCRD(nil)
	crd.Status.StoredVersions, crd.Status.AcceptedNames.Kind = []string{"v9"}, "Other"
	created := s.CreateCRD(t, "one", crd)
	require.Equal(t, "one", created.Annotations["kcp.io/cluster"])
	conditions := map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.ConditionStatus{}
	for _, c := range created.Status.Conditions {
		conditions[c.Type] = c.Status
		require.False(t, c.LastTransitionTime.IsZero())
	}
	require.Equal(t, map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.ConditionStatus{
		apiextensionsv1.NamesAccepted: apiextensionsv1.ConditionTrue,
		apiextensionsv1.Established:   apiextensionsv1.ConditionTrue,
	}, conditions)
	require.Equal(t, created.Spec.Names, created.Status.AcceptedNames)
	require.Equal(t, []string{"v1"}, created.Status.StoredVersions)

	// The new resource is found at all times.
	w := mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", map[string]any{"size": int64(3), "weight": int64(9)}))
	require.Equal(t, "one", w.GetAnnotations()["kcp.io/cluster"])
	require.Equal(t, map[string]any{"size": int64(3), "color": "blue"}, w.Object["spec"], "pruned and defaulted")

	_, err := s.Dynamic(t, "two").Resource(widgets).Namespace("default").List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = s.Dynamic(t, "one").Resource(widgets).Namespace("default").Create(t.Context(), widget("b", map[string]any{"size": int64(0)}), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, `Widget.example.com "b" is invalid`)
}

func TestIsolation(t *testing.T) {
	t.Parallel()
	s := startServer(t, serverOptions{})
	s.CreateCRD(t, "one", widgetCRD(nil))
	s.CreateCRD(t, "two", widgetCRD(nil))
	other := widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"weight": {Type: "integer"}})
	s.CreateCRD(t, "three", other)

	for _, cluster := range []string{"one", "two", "three"} {
		mustCreate(t, s.Dynamic(t, cluster).Resource(widgets).Namespace("default"), widget("same", map[string]any{"size": int64(1), "weight": int64(7), "color": cluster}))
	}
	for _, cluster := range []string{"one", "two", "three"} {
		list, err := s.Dynamic(t, cluster).Resource(widgets).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		color, _, _ := unstructured.NestedString(list.Items[0].Object, "spec", "color")
		require.Equal(t, cluster, color)
		_, weighed, _ := unstructured.NestedInt64(list.Items[0].Object, "spec", "weight")
		require.Equal(t, cluster == "three", weighed, "each logical cluster has its own schema")
	}
	require.Equal(t, 1, s.opened.custom(), "one shared watch cache")
	require.Len(t, s.table.Definitions(), 2, "equal definitions share their serving info")
}
