package resource

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

const (
	nameField      = "metadata.name"
	namespaceField = "metadata.namespace"
)

func (r *Resource[T]) attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	typed, ok := obj.(T)
	if !ok {
		return nil, nil, fmt.Errorf("unexpected type %T in the storage of %s", obj, r.Name)
	}
	var set fields.Set
	if r.Selectable != nil {
		set = r.Selectable(typed)
	} else {
		set = make(fields.Set, 2)
	}
	set[nameField] = typed.GetName()
	if r.Namespaced {
		set[namespaceField] = typed.GetNamespace()
	}
	return typed.GetLabels(), set, nil
}

// alwaysSelectable reports whether a label is supported without being in FieldLabels.
func (r *Resource[T]) alwaysSelectable(label string) bool {
	return label == nameField || r.Namespaced && label == namespaceField
}

func (r *Resource[T]) predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: r.attrs}
}
