package bindings

import (
	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

var groupVersion = schema.GroupVersion{Group: apis.InternalGroup, Version: "v1alpha1"}

// BoundSchemas are the copies of the schemas of bound APIs. They are only served in tenancy.AdminCluster.
var BoundSchemas = define()

func define() client.Resource[*BoundSchema, *BoundSchemaList] {
	kinds.Scheme.AddKnownTypes(groupVersion, &BoundSchema{}, &BoundSchemaList{})
	metav1.AddToGroupVersion(kinds.Scheme, groupVersion)
	return client.DefineResource[BoundSchema, BoundSchemaList](groupVersion, "boundschemas")
}

// BoundSchema is a copy of an APIResourceSchema. Its name is the UID of the original.
type BoundSchema struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Original is the name of the APIResourceSchema.
	Original string `json:"original"`
	// Provider is the logical cluster of the APIResourceSchema.
	Provider string `json:"provider"`
	// Created is the creation time of the APIResourceSchema.
	Created metav1.Time `json:"created"`
	// Spec is the spec of the APIResourceSchema, which is immutable.
	Spec apis.APIResourceSchemaSpec `json:"spec"`
	// Conversion is the spec of the APIConversion with the same name, or of the last one if it was deleted.
	Conversion *apisv1alpha1.APIConversionSpec `json:"conversion,omitempty"`
}

// BoundSchemaList is a list of BoundSchemas.
type BoundSchemaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []BoundSchema `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (s *BoundSchema) DeepCopyObject() runtime.Object { return s.deepCopy() }

func (s *BoundSchema) deepCopy() *BoundSchema {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	s.Created.DeepCopyInto(&c.Created)
	c.Spec = *s.Spec.DeepCopy()
	c.Conversion = s.Conversion.DeepCopy()
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *BoundSchemaList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]BoundSchema, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].deepCopy()
	}
	return &c
}

func definitionOfBoundSchemas() (*definitions.Definition, error) {
	preserve := true
	spec := &apiextensionsv1.CustomResourceDefinitionSpec{
		Group: groupVersion.Group,
		Names: apiextensionsv1.CustomResourceDefinitionNames{
			Plural: "boundschemas", Singular: "boundschema", Kind: "BoundSchema", ListKind: "BoundSchemaList",
		},
		Scope: apiextensionsv1.ClusterScoped,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: groupVersion.Version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve},
			},
		}},
		Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
	}
	s, err := definitions.NewSchema(spec, &spec.Names)
	if err != nil {
		return nil, err
	}
	return &definitions.Definition{Schema: s, Owner: "the server"}, nil
}

func copyOf(original *apis.APIResourceSchema) *BoundSchema {
	return &BoundSchema{
		ObjectMeta: metav1.ObjectMeta{Name: string(original.UID)},
		Original:   original.Name,
		Provider:   logicalcluster.From(original).String(),
		Created:    original.CreationTimestamp,
		Spec:       original.Spec,
	}
}
