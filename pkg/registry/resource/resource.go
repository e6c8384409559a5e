package resource

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Object is what a Resource can be made for: a pointer to an API type.
type Object interface {
	runtime.Object
	metav1.Object
}

// Definition is one resource of a Group: a *Resource, a *View of one, or a
// *Review.
type Definition interface {
	// Plural returns the name in URLs.
	Plural() string
	// register adds the resource's types, defaults and field labels to the
	// scheme, under gv and under the internal version of gv's group.
	register(scheme *runtime.Scheme, gv schema.GroupVersion) error
	// storage returns the resource's storages by path ("name", "name/status").
	storage(b *Builder, gv schema.GroupVersion) (map[string]rest.Storage, error)
}

// Resource describes one resource whose objects are of type T. Fields without
// a comment that says otherwise are required.
type Resource[T Object] struct {
	// Name is the plural, lower-case name in URLs.
	Name string
	// Singular is the singular, lower-case name.
	Singular string
	// Kind is the name of the Go type on the wire.
	Kind string
	// ShortNames are kubectl's abbreviations; optional.
	ShortNames []string
	// Categories are the groups of resources, such as "all", that it belongs
	// to; optional.
	Categories []string
	// Namespaced is set for resources that live in a namespace.
	Namespaced bool

	// New and NewList make an empty object and an empty list.
	New     func() T
	NewList func() runtime.Object

	// Default fills in defaults whenever an object is decoded, from the wire
	// or from storage; optional.
	Default func(obj T)
	// Strategy is the behaviour on create, update and delete.
	Strategy Strategy[T]
	// Selectable gives the fields, besides name and namespace, that field
	// selectors may use; optional.
	Selectable func(obj T) fields.Set
	// FieldLabels are the keys of Selectable that clients may name; optional.
	FieldLabels []string
	// Columns are the columns that kubectl prints. Without any, tables show
	// the name and the time of creation.
	Columns []Column[T]
	// TTL is how long objects live; zero is for ever.
	TTL time.Duration

	// Subresources lists views of the same object with another update
	// strategy, such as "status"; optional.
	Subresources []Subresource[T]
	// Customize has the last word on the store before it is completed;
	// optional.
	Customize func(store *genericregistry.Store)
	// Wrap replaces the storage of the resource by one made from the completed
	// store, for resources whose verbs differ from the generic ones; optional.
	Wrap func(store *genericregistry.Store) rest.Storage
	// Extra makes storages of further subresources, by subresource name, that
	// are no views of the object, such as "token"; optional.
	Extra func(store *genericregistry.Store) map[string]rest.Storage
}

// Strategy is the behaviour of a resource. A nil function does nothing.
type Strategy[T Object] struct {
	// PrepareForCreate normalizes a new object before validation; this is
	// where an initial status is set.
	PrepareForCreate func(ctx context.Context, obj T)
	// PrepareForUpdate normalizes an updated object before validation; this is
	// where fields that the request may not change are restored.
	PrepareForUpdate func(ctx context.Context, obj, old T)
	// Validate checks a new object.
	Validate func(ctx context.Context, obj T) field.ErrorList
	// ValidateUpdate checks an updated object.
	ValidateUpdate func(ctx context.Context, obj, old T) field.ErrorList
	// Warnings are sent to the client after a valid create or update.
	Warnings func(ctx context.Context, obj T) []string
	// Canonicalize brings a valid object into the form that is stored.
	Canonicalize func(obj T)

	// CreateOnUpdate lets a PUT create the object.
	CreateOnUpdate bool
	// UnconditionalUpdate lets a PUT without a resourceVersion overwrite.
	UnconditionalUpdate bool
	// GarbageCollection is the default policy on delete; optional.
	GarbageCollection rest.GarbageCollectionPolicy
	// ResetFields are the paths that the strategy sets or restores whatever
	// the client sends, so that field managers do not own them; optional.
	ResetFields [][]string
}

// Subresource is the same object under another path with its own update
// strategy.
type Subresource[T Object] struct {
	// Name is the last path segment, such as "status".
	Name string
	// Strategy is the behaviour on update; the parts about creation and
	// deletion are not used.
	Strategy Strategy[T]
	// WriteOnly takes GET and PATCH away.
	WriteOnly bool
	// Admit may refuse an update, after it was validated, with a status error;
	// optional.
	Admit func(ctx context.Context, obj, old T) error
}

// Plural implements Definition.
func (r *Resource[T]) Plural() string { return r.Name }

// groupResource returns the name of the resource in group.
func (r *Resource[T]) groupResource(group string) schema.GroupResource {
	return schema.GroupResource{Group: group, Resource: r.Name}
}
