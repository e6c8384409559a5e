package customresource

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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
