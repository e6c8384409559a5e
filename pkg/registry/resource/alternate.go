package resource

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Alternate serves a Resource a second time, in another group and another form. Both share one storage. The scheme must
// contain conversions between the forms, which the Group's AddToScheme adds.
type Alternate[T Object] struct {
	// Of is the stored resource. Its group must come first.
	Of *Resource[T]
	// New and NewList return an empty object and list of the other form.
	New     func() runtime.Object
	NewList func() runtime.Object
	// FieldLabels maps the field labels of clients to keys of Of.Selectable.
	FieldLabels map[string]string
}

// Plural implements Definition.
func (v *Alternate[T]) Plural() string { return v.Of.Name }

// register registers the other form as the wire version, and the stored form as the internal version of the group.
func (v *Alternate[T]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error {
	scheme.AddKnownTypeWithName(gv.WithKind(v.Of.Kind), v.New())
	scheme.AddKnownTypeWithName(gv.WithKind(v.Of.Kind+"List"), v.NewList())
	v.Of.addTypes(scheme, internal(gv))
	return addFieldLabels(scheme, gv.WithKind(v.Of.Kind), func(label string) (string, bool) {
		if selectable, ok := v.FieldLabels[label]; ok {
			return selectable, true
		}
		return label, v.Of.alwaysSelectable(label)
	})
}

func (v *Alternate[T]) storage(b *Builder, _ schema.GroupVersion) (map[string]rest.Storage, error) {
	return b.built(v.Of)
}
