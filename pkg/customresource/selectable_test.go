package customresource

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/customresource/customresourcetest"
)

// TestSelectableFieldsOfOthers: definitions of one logical cluster do not increase the memory of another's
// objects. Versions with different selectable fields share one watch cache, which does not store them.
func TestSelectableFieldsOfOthers(t *testing.T) {
	const objects, size, versions = 150, 64 << 10, 30
	s := startServer(t, serverOptions{})
	s.CreateCRD(t, "large", widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{"text": {Type: "string"}}))
	large := s.Dynamic(t, "large").Resource(widgets).Namespace("default")
	for i := range objects {
		mustCreate(t, large, widget(fmt.Sprint("w", i), map[string]any{"text": strings.Repeat("x", size)}))
	}
	_, err := large.List(t.Context(), metav1.ListOptions{}) // fills the cache of lists
	require.NoError(t, err)
	before := customresourcetest.HeapInUse()
	s.CreateCRD(t, "greedy", manyVersions(versions))
	greedy := s.Dynamic(t, "greedy")
	mustCreate(t, greedy.Resource(widgets).Namespace("default"), widget("mine", map[string]any{"size": int64(1)}))
	for i := range versions {
		resource := widgets
		resource.Version = fmt.Sprint("v", i+1)
		list, err := greedy.Resource(resource).List(t.Context(), metav1.ListOptions{FieldSelector: fmt.Sprintf("spec.f%d=blue", i+1)})
		require.NoError(t, err)
		require.Len(t, list.Items, 1, resource.Version)
	}
	require.Len(t, s.table.Definitions(), 2)
	require.Equal(t, 1, s.opened.custom(), "shared stores, each with a watch cache")
	// Thirty copies would be 300 MiB.
	require.Less(t, customresourcetest.HeapInUse()-before, int64(100<<20))
}

// manyVersions returns widgets in versions v1 to vn, each with its own selectable field with a default.
func manyVersions(n int) *apiextensionsv1.CustomResourceDefinition {
	crd := widgetCRD(nil)
	of := crd.Spec.Versions[0]
	crd.Spec.Versions = nil
	for i := range n {
		v := of.DeepCopy()
		field := fmt.Sprint("f", i+1)
		v.Name, v.Storage = fmt.Sprint("v", i+1), i == 0
		v.Schema.OpenAPIV3Schema.Properties["spec"].Properties[field] = apiextensionsv1.JSONSchemaProps{
			Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"blue"`)},
		}
		v.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec." + field}}
		crd.Spec.Versions = append(crd.Spec.Versions, *v)
	}
	return crd
}
