package resource

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// storage builds the store of the resource and the storages around it.
func (r *Resource[T]) storage(b *Builder, gv schema.GroupVersion) (map[string]rest.Storage, error) {
	store := r.newStore(b, gv)
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
		out[r.Name+"/"+sub.Name] = r.subresourceStorage(b, store, sub)
	}
	if r.Extra != nil {
		for name, storage := range r.Extra(store) {
			out[r.Name+"/"+name] = storage
		}
	}
	return out, nil
}

func (r *Resource[T]) newStore(b *Builder, gv schema.GroupVersion) *genericregistry.Store {
	s := newStrategy(b.Scheme, r.Namespaced, r.Strategy, b.groups[r])
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

func (r *Resource[T]) subresourceStorage(b *Builder, store *genericregistry.Store, sub Subresource[T]) rest.Storage {
	s := newStrategy(b.Scheme, r.Namespaced, sub.Strategy, b.groups[r])
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
