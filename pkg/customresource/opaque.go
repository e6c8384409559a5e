package customresource

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Opaque returns a copy of crd that stores objects as they are: every field is
// kept, nothing is validated or defaulted, versions are not converted beyond
// their name, and there are no subresources, so that a status is written
// together with its object. It is what a server of replicas serves.
func Opaque(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	out := crd.DeepCopy()
	out.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	out.Spec.PreserveUnknownFields = false
	for i := range out.Spec.Versions {
		v := &out.Spec.Versions[i]
		preserve := true
		v.Schema = &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type:                   "object",
				XPreserveUnknownFields: &preserve,
			},
		}
		v.Subresources = nil
		v.Deprecated = false
		v.DeprecationWarning = nil
	}
	return out
}

// OpaqueSchema returns the schema of a cluster-scoped resource of which nothing is known but its kind:
// objects are stored and shown as they are, as Opaque says.
func OpaqueSchema(resource schema.GroupVersionResource, kind string) (*definitions.Schema, error) {
	crd := Opaque(&apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: resource.Group,
		Names: apiextensionsv1.CustomResourceDefinitionNames{
			Plural: resource.Resource, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List",
		},
		Scope:    apiextensionsv1.ClusterScoped,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: resource.Version, Served: true, Storage: true}},
	}})
	return definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
}
