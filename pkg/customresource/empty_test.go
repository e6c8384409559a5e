package customresource

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// TestEmptyUnreadable: objects that cannot be read with the schema are deleted by their metadata.
func TestEmptyUnreadable(t *testing.T) {
	t.Parallel()
	former := boundSchema(t, "one", "size")
	source := newBoundAPIs(map[string]boundAPI{"consumer": former, "neighbor": former})
	s := startServer(t, serverOptions{sources: []definitions.Source{source}})
	for _, cluster := range []string{"consumer", "neighbor"} {
		objects := s.Dynamic(t, cluster).Resource(widgets).Namespace("default")
		for _, name := range []string{"free", "kept"} {
			w := widget(name, nil)
			if name == "kept" {
				w.SetFinalizers([]string{"example.com/wait"})
			}
			mustCreate(t, objects, w)
		}
	}
	crd := widgetCRD(nil)
	crd.Spec.Scope, crd.Spec.Names.Kind, crd.Spec.Names.ListKind = apiextensionsv1.ClusterScoped, "Gizmo", "GizmoList"
	crd.Spec.Versions[0].Name = "v2"
	apiextensionsserver.Scheme.Default(crd)
	next, err := definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
	require.NoError(t, err)
	d := &definitions.Definition{Schema: next, Identity: "one"}
	left, err := s.Empty(t.Context(), "consumer", d)
	require.NoError(t, err)
	require.Equal(t, definitions.Remaining{Objects: 1, Finalizers: map[string]int{"example.com/wait": 1}}, left)

	objects := s.Dynamic(t, "consumer").Resource(widgets).Namespace("default")
	_, err = objects.Get(t.Context(), "free", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	kept, err := objects.Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotNil(t, kept.GetDeletionTimestamp())
	require.Equal(t, "Widget", kept.GetKind(), "what is stored stays as it is otherwise")
	_, err = objects.Patch(t.Context(), "kept", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	left, err = s.Empty(t.Context(), "consumer", d)
	require.NoError(t, err)
	require.Zero(t, left.Objects)
	all, err := s.Dynamic(t, "neighbor").Resource(widgets).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, all.Items, 2)
	require.Equal(t, "neighbor", logicalcluster.From(&all.Items[0]).String())
}
