package resource

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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

func (r *Resource[T]) addTypes(scheme *runtime.Scheme, gv schema.GroupVersion) {
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind), r.New())
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind+"List"), r.NewList())
}

func (r *Resource[T]) defaultList(list any) {
	// The function does not fail, and an object that is not a list has no items.
	_ = meta.EachListItem(list.(runtime.Object), func(obj runtime.Object) error {
		if typed, ok := obj.(T); ok {
			r.Default(typed)
		}
		return nil
	})
}

func internal(gv schema.GroupVersion) schema.GroupVersion {
	return schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
}

// addFieldLabels adds field labels for selectors. translate returns the name of the selectable field.
func addFieldLabels(scheme *runtime.Scheme, gvk schema.GroupVersionKind, translate func(string) (string, bool)) error {
	return scheme.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		selectable, ok := translate(label)
		if !ok {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return selectable, value, nil
	})
}
