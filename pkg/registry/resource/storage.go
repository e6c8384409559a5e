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
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// storage builds the store of the resource and the storages around it.
func (r *Resource[T]) storage(b *Builder, gv schema.GroupVersion) (map[string]rest.Storage, error) {
	store := r.newStore(b.Scheme, gv)
	if r.Customize != nil {
		r.Customize(store)
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: b.RESTOptions, AttrFunc: sharedAttrs(r.attrs)}); err != nil {
		return nil, fmt.Errorf("building the storage of %s: %w", r.groupResource(gv.Group), err)
	}
	store.StorageVersioner = gv

	out := map[string]rest.Storage{r.Name: &Storage{Store: store, shortNames: r.ShortNames, categories: r.Categories}}
	if r.Wrap != nil {
		out[r.Name] = r.Wrap(store)
	}
	for _, sub := range r.Subresources {
		out[r.Name+"/"+sub.Name] = r.subresourceStorage(newStrategy(b.Scheme, r.Namespaced, sub.Strategy, gv), store, sub)
	}
	if r.Extra != nil {
		for name, storage := range r.Extra(store) {
			out[r.Name+"/"+name] = storage
		}
	}
	return out, nil
}

func (r *Resource[T]) newStore(scheme *runtime.Scheme, gv schema.GroupVersion) *genericregistry.Store {
	s := newStrategy(scheme, r.Namespaced, r.Strategy, gv)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return newObject[T]() },
		NewListFunc:               r.NewList,
		DefaultQualifiedResource:  r.groupResource(gv.Group),
		SingularQualifiedResource: schema.GroupResource{Group: gv.Group, Resource: strings.ToLower(r.Kind)},
		PredicateFunc: func(label labels.Selector, field fields.Selector) apistorage.SelectionPredicate {
			return apistorage.SelectionPredicate{Label: label, Field: field, GetAttrs: r.attrs}
		},
		CreateStrategy:      s,
		UpdateStrategy:      s,
		DeleteStrategy:      s,
		ResetFieldsStrategy: s,
		TableConvertor:      newTable(r.groupResource(gv.Group), r.Columns),
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

func (r *Resource[T]) subresourceStorage(s strategy[T], store *genericregistry.Store, sub Subresource[T]) rest.Storage {
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
			if err := s.admit(ctx, obj, old); err != nil {
				return err
			}
			if updateValidation == nil {
				return nil
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
	// Name and Kind are as in Resource.
	Name, Kind string
	// Namespaced is set for questions about one namespace.
	Namespaced bool
	// Evaluate returns the response, which may be obj itself. It is called after admission.
	Evaluate func(ctx context.Context, obj T) (runtime.Object, error)
}

// Plural implements Definition.
func (r *Review[T]) Plural() string { return r.Name }

func (r *Review[T]) register(scheme *runtime.Scheme, gv schema.GroupVersion) error { //nolint:unparam // required by Definition
	scheme.AddKnownTypeWithName(gv.WithKind(r.Kind), newObject[T]())
	scheme.AddKnownTypeWithName(internal(gv).WithKind(r.Kind), newObject[T]())
	return nil
}

func (r *Review[T]) storage(*Builder, schema.GroupVersion) (map[string]rest.Storage, error) { //nolint:unparam // required by Definition
	return map[string]rest.Storage{r.Name: &reviewStorage[T]{r}}, nil
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

func (s *reviewStorage[T]) GetSingularName() string { return strings.ToLower(s.review.Kind) }

func (s *reviewStorage[T]) Create(ctx context.Context, obj runtime.Object, admit rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	question, ok := obj.(T)
	if !ok {
		return nil, errors.New("the object is not a " + s.review.Kind)
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
