package resource

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// View serves a Resource a second time, in another group and in another shape.
// Both share one storage, so that what is written through one is seen, and
// watched, through the other. The scheme must know how to convert between the
// shapes; the Group's AddToScheme adds that.
type Alternate[T Object] struct {
	// Of is the resource that is stored. Its group must come first.
	Of *Resource[T]
	// New and NewList make an empty object and list in the other shape.
	New     func() runtime.Object
	NewList func() runtime.Object
	// FieldLabels maps what clients may select by to keys of Of.Selectable.
	FieldLabels map[string]string
}

// Plural implements Definition.
func (v *Alternate[T]) Plural() string { return v.Of.Name }

// register adds the other shape as wire version, and the stored one as
// internal version of the view's group.
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

// storage returns the storage of the viewed resource, which was built first.
func (v *Alternate[T]) storage(b *Builder, _ schema.GroupVersion) (map[string]rest.Storage, error) {
	return b.built(v.Of)
}
