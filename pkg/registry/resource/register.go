package resource

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// register adds the Go types as wire and as internal version.
func (r *Resource[T]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error {
	r.addTypes(scheme, gv)
	r.addTypes(scheme, internal(gv))
	if r.Default != nil {
		scheme.AddTypeDefaultingFunc(r.New(), func(obj any) { r.Default(obj.(T)) })
		scheme.AddTypeDefaultingFunc(r.NewList(), r.defaultList)
	}
	if len(r.FieldLabels) == 0 {
		return nil
	}
	return addFieldLabels(scheme, gv.WithKind(r.Kind), func(label string) (string, bool) {
		return label, slices.Contains(r.FieldLabels, label) || r.alwaysSelectable(label)
	})
}

// addTypes registers the object and its list under gv.
func (r *Resource[T]) addTypes(scheme *runtime.Scheme, gv schema.GroupVersion) {
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind), r.New())
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind+"List"), r.NewList())
}

// defaultList defaults the items of a list that arrives as a whole.
func (r *Resource[T]) defaultList(list any) {
	// The visitor cannot fail, and a list that is none has no items.
	_ = eachItem(list.(runtime.Object), func(obj runtime.Object) {
		if typed, ok := obj.(T); ok {
			r.Default(typed)
		}
	})
}

// internal returns the internal version of gv's group.
func internal(gv schema.GroupVersion) schema.GroupVersion {
	return schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
}

// addFieldLabels lets clients use the labels that translate knows in field
// selectors. translate returns the name under which the field is selectable.
func addFieldLabels(scheme *runtime.Scheme, gvk schema.GroupVersionKind, translate func(string) (string, bool)) error {
	return scheme.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		selectable, ok := translate(label)
		if !ok {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return selectable, value, nil
	})
}
