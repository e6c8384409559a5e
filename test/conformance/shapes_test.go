package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type (
	props      = apiextensionsv1.JSONSchemaProps
	crdVersion = apiextensionsv1.CustomResourceDefinitionVersion
	crd        = apiextensionsv1.CustomResourceDefinition
)

// bigCRD returns a definition of about the given size, with nested objects of described fields.
func bigCRD(t testing.TB, group string, i, size int) *crd {
	t.Helper()
	plural := fmt.Sprintf("things%02d", i)
	spec := map[string]props{}
	definition := newCRD(group, plural, fmt.Sprintf("Thing%02d", i), crdVersion{
		Name: "v1", Served: true, Storage: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props{
			Type:        "object",
			Description: "A thing of the kind that operators manage.",
			Properties: map[string]props{
				"spec":   {Type: "object", Properties: spec},
				"status": {Type: "object", Properties: map[string]props{"phase": {Type: "string"}}},
			},
		}},
		Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
	})
	for n, have := 0, sizeOf(t, definition); have < size; n++ {
		fields := map[string]props{}
		for f := range 8 {
			fields[fmt.Sprintf("field%d", f)] = props{
				Type:        []string{"string", "integer", "boolean"}[f%3],
				Description: "Specifies an aspect of the thing. " + strings.Repeat("It matters. ", 1+f%4),
			}
		}
		name, section := fmt.Sprintf("section%d", n), props{Type: "object", Description: "A part of the thing.", Properties: fields}
		spec[name] = section
		have += sizeOf(t, section) + len(name) + len(`"":,`)
	}
	return definition
}

func sizeOf(t testing.TB, of any) int {
	t.Helper()
	data, err := json.Marshal(of)
	require.NoError(t, err)
	return len(data)
}

// newCRD returns a namespaced definition.
func newCRD(group, plural, kind string, versions ...crdVersion) *crd {
	return &crd{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List",
			},
			Versions: versions,
		},
	}
}
