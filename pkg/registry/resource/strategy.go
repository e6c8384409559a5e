package resource

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/fieldmanagers"
)

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
