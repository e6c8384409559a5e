package rbac

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

// guarded is a store that checks writes.
type guarded[T resource.Object] struct {
	*genericregistry.Store
	// check may reject a write of obj. old is nil for a new object.
	check func(ctx context.Context, obj, old T) error
}

func guardWith[T resource.Object](check func(ctx context.Context, obj, old T) error) func(*genericregistry.Store) rest.Storage {
	return func(store *genericregistry.Store) rest.Storage { return &guarded[T]{Store: store, check: check} }
}

func (s *guarded[T]) checkObject(ctx context.Context, obj, old runtime.Object) error {
	typed, ok := obj.(T)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("unexpected object of type %T", obj))
	}
	before, _ := old.(T)
	return s.check(ctx, typed, before)
}

var _ rest.StandardStorage = &guarded[*rbacv1.Role]{}

// Create implements rest.Creater.
func (s *guarded[T]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := s.checkObject(ctx, obj, nil); err != nil {
		return nil, err
	}
	return s.Store.Create(ctx, obj, validate, options)
}

// Update implements rest.Updater. It also creates objects, for PUT and for server-side apply.
func (s *guarded[T]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	checked := rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		return obj, s.checkObject(ctx, obj, old)
	})
	return s.Store.Update(ctx, name, checked, create, update, force, options)
}
