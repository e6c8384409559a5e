package definitions

import (
	"context"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Projection shows the objects of one resource, which are stored, as objects of another
// one, to be read only: they are in the same watch cache, and have its versions. Its
// functions can be called concurrently.
type Projection struct {
	// Stored is the resource that is stored.
	Stored schema.GroupResource
	// Show returns what is shown of a stored object, which it may keep and change.
	Show func(stored *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// ShownName returns the name of what is shown of a stored object. It must be quick.
	ShownName func(stored *unstructured.Unstructured) string
	// StoredName returns the name of the object that a request sees under a name, or ""
	// if it sees none.
	StoredName func(ctx context.Context, shown string) (string, error)
}

// NewProjectedSchema makes a schema, for a Source of one's own, under which objects of
// another resource are shown. spec and names are kept.
func NewProjectedSchema(crd *apiextensionsv1.CustomResourceDefinition, p *Projection) (*Schema, error) {
	apiextensionsserver.Scheme.Default(crd)
	in := hashInput{Spec: &crd.Spec, Names: &crd.Spec.Names, Projected: p.Stored.String(), projection: p}
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	return newSchema(hash, in), nil
}
