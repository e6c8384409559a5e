package apis

import (
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// APIResourceSchema is kcp's type with selectable fields, which the SDK does not have. Clients with the SDK's type
// remove them when they write.
type APIResourceSchema struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec APIResourceSchemaSpec `json:"spec"`
}

// APIResourceSchemaSpec is the spec of a schema. Its Versions hide those of the embedded type, also in JSON.
type APIResourceSchemaSpec struct {
	apisv1alpha1.APIResourceSchemaSpec `json:",inline"`

	Versions []APIResourceVersion `json:"versions"`
}

// APIResourceVersion is a version of a schema.
type APIResourceVersion struct {
	apisv1alpha1.APIResourceVersion `json:",inline"`

	// SelectableFields are as in CustomResourceDefinitions.
	SelectableFields []apiextensionsv1.SelectableField `json:"selectableFields,omitempty"`
}

// DeepCopy returns a copy.
func (s *APIResourceSchemaSpec) DeepCopy() *APIResourceSchemaSpec {
	c := &APIResourceSchemaSpec{APIResourceSchemaSpec: *s.APIResourceSchemaSpec.DeepCopy()}
	for i := range s.Versions {
		c.Versions = append(c.Versions, APIResourceVersion{
			APIResourceVersion: *s.Versions[i].APIResourceVersion.DeepCopy(),
			SelectableFields:   append([]apiextensionsv1.SelectableField(nil), s.Versions[i].SelectableFields...),
		})
	}
	return c
}

// SchemaFrom reads an APIResourceSchema.
func SchemaFrom(u *unstructured.Unstructured) (*APIResourceSchema, error) {
	s, err := as[APIResourceSchema](u)
	if err == nil {
		s.Spec.APIResourceSchemaSpec.Versions = nil
	}
	return s, err
}

func as[T any](u *unstructured.Unstructured) (*T, error) {
	typed := new(T)
	return typed, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed)
}
