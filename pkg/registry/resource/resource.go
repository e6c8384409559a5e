// Package resource turns descriptions of API resources into storages that a generic API server can install. It does not
// depend on any particular resource.
package resource

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Definition is one resource of a Group: a *Resource, an *Alternate of one, or a *Review.
type Definition interface {
	// Plural returns the name in URLs.
	Plural() string
	// register adds the resource's types, defaults and field labels to the scheme, for gv and for the internal version.
	register(scheme *runtime.Scheme, gv schema.GroupVersion) error
	// storage returns the resource's storages by path ("name", "name/status").
	storage(b *Builder, gv schema.GroupVersion) (map[string]rest.Storage, error)
}

// Resource describes a resource with objects of type T, which has the name of the kind, and lists of type L. Fields are
// required unless they are described as optional.
type Resource[T Object, L runtime.Object] struct {
	// ShortNames are kubectl's abbreviations; optional.
	ShortNames []string
	// Categories are groups of resources, such as "all"; optional.
	Categories []string
	Namespaced bool

	// NewList returns an empty list.
	NewList func() runtime.Object

	// Default sets defaults whenever an object is decoded, also from storage; optional.
	Default func(obj T)
	// Strategy is the behavior on create, update and delete.
	Strategy Strategy[T]
	// Selectable returns the fields for field selectors, besides name and namespace; optional. The keys are always the same.
	Selectable func(obj T) fields.Set
	// Columns are the columns of tables.
	Columns []Column[T]
	// TTL is the lifetime of objects; zero means unlimited.
	TTL time.Duration

	// Subresources are the same object with another update strategy, such as "status"; optional.
	Subresources []Subresource[T]
	// Customize changes the store before it is completed; optional.
	Customize func(store *genericregistry.Store)
	// Wrap replaces the storage of the resource if its verbs differ from those of the completed store; optional.
	Wrap func(store *genericregistry.Store) rest.Storage
	// Extra returns storages of other subresources by name, such as "token"; optional.
	Extra func(store *genericregistry.Store) map[string]rest.Storage
}

// Strategy is the behavior of a resource. All functions are optional.
type Strategy[T Object] struct {
	// PrepareForCreate normalizes a new object before validation, e.g. sets its initial status.
	PrepareForCreate func(ctx context.Context, obj T)
	// PrepareForUpdate normalizes an updated object before validation, e.g. restores fields that must not be changed.
	PrepareForUpdate func(ctx context.Context, obj, old T)
	// Validate validates a new object.
	Validate func(ctx context.Context, obj T) field.ErrorList
	// ValidateUpdate validates an updated object.
	ValidateUpdate func(ctx context.Context, obj, old T) field.ErrorList
	// Warnings returns warnings for the client after a valid create or update.
	Warnings func(ctx context.Context, obj T) []string
	// Canonicalize brings a valid object into the stored form.
	Canonicalize func(obj T)

	// CreateOnUpdate allows PUT to create the object.
	CreateOnUpdate bool
	// UnconditionalUpdate allows PUT without a resourceVersion.
	UnconditionalUpdate bool
	// GarbageCollection is the default policy on delete; optional.
	GarbageCollection rest.GarbageCollectionPolicy
	// ResetFields are the paths that the strategy sets or restores, so that field managers do not own them; optional.
	ResetFields [][]string
}

// Subresource is the same object under another path with its own update strategy.
type Subresource[T Object] struct {
	// Name is the last path segment, such as "status".
	Name string
	// Strategy is the behavior on update.
	Strategy Strategy[T]
	// WriteOnly disables GET and PATCH.
	WriteOnly bool
	// Admit may reject a valid update with a status error; optional.
	Admit func(ctx context.Context, obj, old T) error
}

func newObject[T runtime.Object]() T {
	obj, _ := reflect.TypeAssert[T](reflect.New(reflect.TypeFor[T]().Elem()))
	return obj
}

func kindOf[T Object]() string { return reflect.TypeFor[T]().Elem().Name() }

// resourceOf returns the plural and the singular name of T's resource.
func resourceOf[T Object](gv schema.GroupVersion) (plural, singular schema.GroupResource) {
	many, one := meta.UnsafeGuessKindToResource(gv.WithKind(kindOf[T]()))
	return many.GroupResource(), one.GroupResource()
}

func pluralOf[T Object]() string {
	plural, _ := resourceOf[T](schema.GroupVersion{})
	return plural.Resource
}

// Plural implements Definition.
func (r *Resource[T, L]) Plural() string { return pluralOf[T]() }

// Group is one version of an API group with its resources.
type Group struct {
	// GroupVersion is the served and stored version.
	GroupVersion schema.GroupVersion
	Resources    []Definition
	// AddToScheme adds what the resources do not define, e.g. conversions and kinds of subresources; optional.
	AddToScheme func(*runtime.Scheme) error
}

// Register adds the types of the group to the scheme.
func (g Group) Register(scheme *runtime.Scheme) error {
	metav1.AddToGroupVersion(scheme, g.GroupVersion)
	errs := make([]error, 0, len(g.Resources)+2)
	for _, definition := range g.Resources {
		errs = append(errs, definition.register(scheme, g.GroupVersion))
	}
	if g.AddToScheme != nil {
		errs = append(errs, g.AddToScheme(scheme))
	}
	errs = append(errs, scheme.SetVersionPriority(g.GroupVersion))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("registering %s: %w", g.GroupVersion, err)
	}
	return nil
}

// Builder creates the storages of groups.
type Builder struct {
	// Scheme must contain all groups.
	Scheme *runtime.Scheme
	// RESTOptions configures the storage.
	RESTOptions generic.RESTOptionsGetter

	storages map[Definition]map[string]rest.Storage
}

// Build returns the storages of each group by path, in the order of groups. If it fails, Destroy must be called.
func (b *Builder) Build(groups []Group) ([]map[string]rest.Storage, error) {
	b.storages = map[Definition]map[string]rest.Storage{}
	out := make([]map[string]rest.Storage, 0, len(groups))
	for _, group := range groups {
		paths := map[string]rest.Storage{}
		for _, definition := range group.Resources {
			storages, err := definition.storage(b, group.GroupVersion)
			if err != nil {
				return nil, err
			}
			b.storages[definition] = storages
			for path, storage := range storages {
				if _, exists := paths[path]; exists {
					return nil, fmt.Errorf("two resources of %s have the path %q: rename one of them", group.GroupVersion, path)
				}
				paths[path] = storage
			}
		}
		out = append(out, paths)
	}
	return out, nil
}

// Destroy destroys all storages. A server that has installed them does this itself; it may be repeated.
func (b *Builder) Destroy() {
	for _, storages := range b.storages {
		for _, storage := range storages {
			storage.Destroy()
		}
	}
}

func (r *Resource[T, L]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error {
	scheme.AddKnownTypes(gv, newObject[T](), newObject[L]())
	scheme.AddKnownTypes(internal(gv), newObject[T](), newObject[L]())
	if r.Default != nil {
		scheme.AddTypeDefaultingFunc(newObject[T](), func(obj any) { r.Default(obj.(T)) })
		scheme.AddTypeDefaultingFunc(newObject[L](), r.defaultList)
	}
	if r.Selectable == nil {
		return nil
	}
	_, names, err := r.attrs(newObject[T]())
	for name := range names {
		names[name] = name
	}
	return errors.Join(err, addFieldLabels[T](scheme, gv, names))
}

func (r *Resource[T, L]) defaultList(list any) {
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
func addFieldLabels[T Object](scheme *runtime.Scheme, gv schema.GroupVersion, names map[string]string) error {
	return scheme.AddFieldLabelConversionFunc(gv.WithKind(kindOf[T]()), func(label, value string) (string, string, error) {
		selectable, ok := names[label]
		if !ok {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return selectable, value, nil
	})
}

func (r *Resource[T, L]) attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	typed, ok := obj.(T)
	if !ok {
		return nil, nil, fmt.Errorf("unexpected type %T in the storage of %s", obj, r.Plural())
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
type Alternate[T Object, L runtime.Object] struct {
	// Of is the stored resource. Its group must come first.
	Of *Resource[T, L]
	// New and NewList return an empty object and list of the other form, of the same kind.
	New     func() runtime.Object
	NewList func() runtime.Object
	// FieldLabels maps the field labels of clients to those of Of, including name and namespace.
	FieldLabels map[string]string
}

// Plural implements Definition.
func (v *Alternate[T, L]) Plural() string { return v.Of.Plural() }

// register registers the other form as the wire version, and the stored form as the internal version of the group.
func (v *Alternate[T, L]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error {
	scheme.AddKnownTypes(gv, v.New(), v.NewList())
	scheme.AddKnownTypes(internal(gv), newObject[T](), newObject[L]())
	return addFieldLabels[T](scheme, gv, v.FieldLabels)
}

func (v *Alternate[T, L]) storage(b *Builder, _ schema.GroupVersion) (map[string]rest.Storage, error) {
	storages, ok := b.storages[v.Of]
	if !ok {
		return nil, errors.New("an alternate was built before its resource: list the resource's group first")
	}
	return storages, nil
}
