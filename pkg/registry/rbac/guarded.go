package rbac

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// guarded is a store whose writes a check must let pass.
type guarded struct {
	*genericregistry.Store
	// check refuses to write obj over old, which is nil for a new object.
	check func(ctx context.Context, obj, old runtime.Object) error
}

var _ rest.StandardStorage = &guarded{}

// Create implements rest.Creater.
func (s *guarded) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := s.check(ctx, obj, nil); err != nil {
		return nil, err
	}
	return s.Store.Create(ctx, obj, validate, options)
}

// Update implements rest.Updater. It also creates, for PUT and for server-side
// apply.
func (s *guarded) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	checked := rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		return obj, s.check(ctx, obj, old)
	})
	return s.Store.Update(ctx, name, checked, create, update, force, options)
}
