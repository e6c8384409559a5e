// Package resource turns descriptions of API resources into storages that a generic API server can install.
//
// A Resource is a table: names, constructors, selectable fields, printer columns, and a Strategy of functions for the
// behavior. A Group contains the resources of one API group and version and registers their types; a Builder creates the
// storages. This package does not depend on any particular resource.
package resource

import (
	"context"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Object is a pointer to an API type.
type Object interface {
	runtime.Object
	metav1.Object
}

// Definition is one resource of a Group: a *Resource, an *Alternate of one, or a *Review.
type Definition interface {
	// Plural returns the name in URLs.
	Plural() string
	// register adds the resource's types, defaults and field labels to the scheme, for gv and for the internal version.
	register(scheme *runtime.Scheme, gv schema.GroupVersion) error
	// storage returns the resource's storages by path ("name", "name/status").
	storage(b *Builder, gv schema.GroupVersion) (map[string]rest.Storage, error)
}

// Resource describes a resource whose objects are of type T. Fields are required unless they are described as optional.
type Resource[T Object] struct {
	// Name is the plural, lower-case name in URLs.
	Name string
	// Kind is also the singular name, in lower case.
	Kind string
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
	// Wrap replaces the storage of the resource, given the completed store, if its verbs differ from the generic ones; optional.
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
	// ResetFields are the paths that the strategy always sets or restores, so that field managers do not own them; optional.
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

func newObject[T Object]() T {
	obj, _ := reflect.TypeAssert[T](reflect.New(reflect.TypeFor[T]().Elem()))
	return obj
}

// Plural implements Definition.
func (r *Resource[T]) Plural() string { return r.Name }

func (r *Resource[T]) groupResource(group string) schema.GroupResource {
	return schema.GroupResource{Group: group, Resource: r.Name}
}
