package resource

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

func (r *Resource[T]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error {
	r.addTypes(scheme, gv)
	r.addTypes(scheme, internal(gv))
	if r.Default != nil {
		scheme.AddTypeDefaultingFunc(newObject[T](), func(obj any) { r.Default(obj.(T)) })
		scheme.AddTypeDefaultingFunc(r.NewList(), r.defaultList)
	}
	if r.Selectable == nil {
		return nil
	}
	_, names, err := r.attrs(newObject[T]())
	for name := range names {
		names[name] = name
	}
	return errors.Join(err, addFieldLabels(scheme, gv.WithKind(r.Kind), names))
}

func (r *Resource[T]) addTypes(scheme *runtime.Scheme, gv schema.GroupVersion) {
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind), newObject[T]())
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

// addFieldLabels adds field labels for selectors, with the names of the selectable fields.
func addFieldLabels(scheme *runtime.Scheme, gvk schema.GroupVersionKind, names map[string]string) error {
	return scheme.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		selectable, ok := names[label]
		if !ok {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return selectable, value, nil
	})
}

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
	set["metadata.name"] = typed.GetName()
	if r.Namespaced {
		set["metadata.namespace"] = typed.GetNamespace()
	}
	return typed.GetLabels(), set, nil
}

// Alternate serves a Resource without ResetFields a second time, in another group and another form. Both share one
// storage. The Group's AddToScheme must add conversions between the forms.
type Alternate[T Object] struct {
	// Of is the stored resource. Its group must come first.
	Of *Resource[T]
	// New and NewList return an empty object and list of the other form.
	New     func() runtime.Object
	NewList func() runtime.Object
	// FieldLabels maps the field labels of clients to those of Of, including name and namespace.
	FieldLabels map[string]string
}

// Plural implements Definition.
func (v *Alternate[T]) Plural() string { return v.Of.Name }

// register registers the other form as the wire version, and the stored form as the internal version of the group.
func (v *Alternate[T]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error {
	scheme.AddKnownTypeWithName(gv.WithKind(v.Of.Kind), v.New())
	scheme.AddKnownTypeWithName(gv.WithKind(v.Of.Kind+"List"), v.NewList())
	v.Of.addTypes(scheme, internal(gv))
	return addFieldLabels(scheme, gv.WithKind(v.Of.Kind), v.FieldLabels)
}

func (v *Alternate[T]) storage(b *Builder, _ schema.GroupVersion) (map[string]rest.Storage, error) {
	storages, ok := b.storages[v.Of]
	if !ok {
		return nil, errors.New("an alternate was built before its resource: list the resource's group first")
	}
	return storages, nil
}
