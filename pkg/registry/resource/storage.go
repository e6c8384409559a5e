package resource

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/fieldmanagers"
)

// storage builds the store of the resource and the storages around it.
func (r *Resource[T, L]) storage(b *Builder, gv schema.GroupVersion) (map[string]rest.Storage, error) {
	store := r.newStore(b.Scheme, gv)
	if r.Customize != nil {
		r.Customize(store)
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: b.RESTOptions, AttrFunc: r.attrs}); err != nil {
		return nil, fmt.Errorf("building the storage of %s: %w", store.DefaultQualifiedResource, err)
	}
	store.StorageVersioner = gv

	name := r.Plural()
	out := map[string]rest.Storage{name: &Storage{Store: store, shortNames: r.ShortNames, categories: r.Categories}}
	if r.Wrap != nil {
		out[name] = r.Wrap(store)
	}
	for _, sub := range r.Subresources {
		out[name+"/"+sub.Name] = subresourceStorage(newStrategy(b.Scheme, r.Namespaced, sub.Strategy, gv), store, sub)
	}
	if r.Extra != nil {
		for sub, storage := range r.Extra(store) {
			out[name+"/"+sub] = storage
		}
	}
	return out, nil
}

func (r *Resource[T, L]) newStore(scheme *runtime.Scheme, gv schema.GroupVersion) *genericregistry.Store {
	s := newStrategy(scheme, r.Namespaced, r.Strategy, gv)
	plural, singular := resourceOf[T](gv)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return newObject[T]() },
		NewListFunc:               func() runtime.Object { return newObject[L]() },
		DefaultQualifiedResource:  plural,
		SingularQualifiedResource: singular,
		PredicateFunc: func(label labels.Selector, field fields.Selector) apistorage.SelectionPredicate {
			return apistorage.SelectionPredicate{Label: label, Field: field, GetAttrs: r.attrs}
		},
		CreateStrategy:      s,
		UpdateStrategy:      s,
		DeleteStrategy:      s,
		ResetFieldsStrategy: s,
		TableConvertor:      newTable(plural, r.Columns),
	}
	if r.TTL > 0 {
		seconds := uint64(r.TTL.Seconds())
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return seconds, nil }
	}
	return store
}

// Storage is a store with short names and categories. It serves every generic verb.
type Storage struct {
	*genericregistry.Store
	shortNames, categories []string
}

// ShortNames implements rest.ShortNamesProvider.
func (s *Storage) ShortNames() []string { return s.shortNames }

// Categories implements rest.CategoriesProvider.
func (s *Storage) Categories() []string { return s.categories }

func subresourceStorage[T Object](s strategy[T], store *genericregistry.Store, sub Subresource[T]) rest.Storage {
	copied := *store
	copied.UpdateStrategy = s
	copied.ResetFieldsStrategy = s
	update := updateStorage{store: &copied}
	if sub.Admit != nil {
		update.admit = func(ctx context.Context, obj, old runtime.Object) error { return sub.Admit(ctx, obj.(T), old.(T)) }
	}
	if sub.WriteOnly {
		return &update
	}
	return &getUpdateStorage{updateStorage: update}
}

// updateStorage serves PUT of a subresource.
type updateStorage struct {
	store *genericregistry.Store
	admit rest.ValidateObjectUpdateFunc // optional
}

var (
	_ rest.Updater             = &updateStorage{}
	_ rest.ResetFieldsStrategy = &updateStorage{}
	_ rest.Patcher             = &getUpdateStorage{}
	_ rest.TableConvertor      = &getUpdateStorage{}
)

func (s *updateStorage) New() runtime.Object { return s.store.New() }

// Destroy does nothing, because the resource owns the store.
func (s *updateStorage) Destroy() {}

// Update updates the object with the strategy of the subresource. It never creates an object.
func (s *updateStorage) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	validation := updateValidation
	if s.admit != nil {
		validation = func(ctx context.Context, obj, old runtime.Object) error {
			if err := s.admit(ctx, obj, old); err != nil || updateValidation == nil {
				return err
			}
			return updateValidation(ctx, obj, old)
		}
	}
	return s.store.Update(ctx, name, objInfo, createValidation, validation, false, options)
}

func (s *updateStorage) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// getUpdateStorage serves GET, PUT and PATCH of a subresource.
type getUpdateStorage struct{ updateStorage }

// Get returns the whole object.
func (s *getUpdateStorage) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// ConvertToTable prints the object as the resource does.
func (s *getUpdateStorage) ConvertToTable(ctx context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, object, tableOptions)
}

// Review describes a resource that can only be created. Its objects are questions. The response is not stored.
type Review[T Object] struct {
	// Namespaced is set for questions about one namespace.
	Namespaced bool
	// Evaluate returns the response, which may be obj itself. It is called after admission.
	Evaluate func(ctx context.Context, obj T) (runtime.Object, error)
}

// Plural implements Definition.
func (r *Review[T]) Plural() string { return pluralOf[T]() }

func (r *Review[T]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error { //nolint:unparam // required by Definition
	scheme.AddKnownTypes(gv, newObject[T]())
	scheme.AddKnownTypes(internal(gv), newObject[T]())
	return nil
}

func (r *Review[T]) storage(*Builder, schema.GroupVersion) (map[string]rest.Storage, error) { //nolint:unparam // required by Definition
	return map[string]rest.Storage{r.Plural(): &reviewStorage[T]{r}}, nil
}

// reviewStorage serves POST of a Review.
type reviewStorage[T Object] struct{ review *Review[T] }

var (
	_ rest.Creater              = &reviewStorage[Object]{}
	_ rest.Scoper               = &reviewStorage[Object]{}
	_ rest.SingularNameProvider = &reviewStorage[Object]{}
)

func (s *reviewStorage[T]) New() runtime.Object { return newObject[T]() }

func (s *reviewStorage[T]) Destroy() {}

func (s *reviewStorage[T]) NamespaceScoped() bool { return s.review.Namespaced }

func (s *reviewStorage[T]) GetSingularName() string { return strings.ToLower(kindOf[T]()) }

func (s *reviewStorage[T]) Create(ctx context.Context, obj runtime.Object, admit rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	question, ok := obj.(T)
	if !ok {
		return nil, errors.New("the object is not a " + kindOf[T]())
	}
	if admit != nil {
		if err := admit(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return s.review.Evaluate(ctx, question)
}

// UserFrom returns the user of a request.
func UserFrom(ctx context.Context) (user.Info, error) {
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		return u, nil
	}
	return nil, apierrors.NewBadRequest("no user present on request")
}

// ConvertExtra converts the extra fields of a user to another type of values. It returns nil if there are none.
func ConvertExtra[To, From ~[]string](extra map[string]From) map[string]To {
	if len(extra) == 0 {
		return nil
	}
	converted := make(map[string]To, len(extra))
	for key, values := range extra {
		converted[key] = To(values)
	}
	return converted
}

// strategy adapts a Strategy to the interfaces of the generic registry.
type strategy[T Object] struct {
	runtime.ObjectTyper
	names.NameGenerator

	namespaced  bool
	do          Strategy[T]
	resetFields map[fieldpath.APIVersion]*fieldpath.Set
}

var (
	_ rest.RESTCreateUpdateStrategy        = strategy[Object]{}
	_ rest.RESTDeleteStrategy              = strategy[Object]{}
	_ rest.GarbageCollectionDeleteStrategy = strategy[Object]{}
	_ rest.ResetFieldsStrategy             = strategy[Object]{}
)

// newStrategy returns the adapter. gv is the version in which field managers refer to the reset fields.
func newStrategy[T Object](typer runtime.ObjectTyper, namespaced bool, do Strategy[T], gv schema.GroupVersion) strategy[T] {
	s := strategy[T]{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator, namespaced: namespaced, do: do}
	if len(do.ResetFields) == 0 {
		return s
	}
	set := fieldpath.NewSet()
	for _, path := range do.ResetFields {
		parts := make([]any, 0, len(path))
		for _, name := range path {
			parts = append(parts, name)
		}
		set.Insert(fieldpath.MakePathOrDie(parts...))
	}
	s.resetFields = map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(gv.String()): set}
	return s
}

func (s strategy[T]) NamespaceScoped() bool { return s.namespaced }

func (s strategy[T]) AllowCreateOnUpdate(context.Context) bool { return s.do.CreateOnUpdate }

func (s strategy[T]) AllowUnconditionalUpdate(context.Context) bool { return s.do.UnconditionalUpdate }

func (s strategy[T]) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return s.do.GarbageCollection
}

func (s strategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return s.resetFields }

func (s strategy[T]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.do.PrepareForCreate != nil {
		s.do.PrepareForCreate(ctx, obj.(T))
	}
}

// PrepareForUpdate also sets the same apiVersion and kind on both objects. They could differ, because internal and
// served versions are the same Go types here, and conversion changes the kind of an object in place. Then, the generic
// registry would not ignore an update that only changes timestamps of field managers.
func (s strategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	obj.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	fieldmanagers.KeepOrder(obj.(T), old.(T))
	if s.do.PrepareForUpdate != nil {
		s.do.PrepareForUpdate(ctx, obj.(T), old.(T))
	}
}

func (s strategy[T]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	if s.do.Validate == nil {
		return nil
	}
	return request.LimitErrors(s.do.Validate(ctx, obj.(T)))
}

func (s strategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if s.do.ValidateUpdate == nil {
		return nil
	}
	return request.LimitErrors(s.do.ValidateUpdate(ctx, obj.(T), old.(T)))
}

func (s strategy[T]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.do.Warnings == nil {
		return nil
	}
	return s.do.Warnings(ctx, obj.(T))
}

func (s strategy[T]) WarningsOnUpdate(ctx context.Context, obj, _ runtime.Object) []string {
	return s.WarningsOnCreate(ctx, obj)
}

func (s strategy[T]) Canonicalize(obj runtime.Object) {
	if s.do.Canonicalize != nil {
		s.do.Canonicalize(obj.(T))
	}
}
