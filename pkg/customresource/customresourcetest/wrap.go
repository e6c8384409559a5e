package customresourcetest

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// Storage returns the storage options for codecs.
type Storage = func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter

// Wrap wraps the store of a resource and its destroy function.
type Wrap func(resource schema.GroupResource, store storage.Interface, destroy factory.DestroyFunc) (storage.Interface, factory.DestroyFunc)

// Wrapped returns of with its stores wrapped.
func Wrapped(of Storage, wrap Wrap) Storage {
	return func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter {
		return wrappedGetter{of(codecFor), wrap}
	}
}

type wrappedGetter struct {
	generic.RESTOptionsGetter
	wrap Wrap
}

func (g wrappedGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	inner := options.Decorator
	options.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, trigger storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		store, destroy, err := inner(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, trigger, indexers)
		if err != nil {
			return nil, nil, err
		}
		store, destroy = g.wrap(resource, store, destroy)
		return store, destroy, nil
	}
	return options, nil
}
