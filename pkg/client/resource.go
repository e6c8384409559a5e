package client

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// Resource is a resource with its Go types, of which typed clients and informers are made.
type Resource[T Object, L runtime.Object] struct {
	schema.GroupVersionResource

	newObject  func() T
	newList    func() L
	protobuf   bool
	codecs     serializer.CodecFactory
	parameters runtime.ParameterCodec
}

// ResourceOption configures a resource.
type ResourceOption func(*resourceOptions)

type resourceOptions struct {
	scheme   *runtime.Scheme
	protobuf bool
}

// WithScheme takes the names of the kinds from a scheme. Without it, kinds are named like their Go types.
func WithScheme(scheme *runtime.Scheme) ResourceOption {
	return func(o *resourceOptions) { o.scheme = scheme }
}

// WithProtobuf uses the protobuf encoding, which custom resources do not have.
func WithProtobuf() ResourceOption { return func(o *resourceOptions) { o.protobuf = true } }

// Client is a typed client of one resource in one logical cluster.
type Client[T Object, L runtime.Object] = gentype.ClientWithList[T, L]

type pointerTo[T any] interface {
	*T
	Object
}

type listPointerTo[T any] interface {
	*T
	runtime.Object
}

// DefineResource returns the resource named plural of a group and version. It panics if the scheme of WithScheme
// does not contain the types. Package kinds defines the resources of every logical cluster.
func DefineResource[T, L any, PT pointerTo[T], PL listPointerTo[L]](gv schema.GroupVersion, plural string, options ...ResourceOption) Resource[PT, PL] {
	r := Resource[PT, PL]{
		GroupVersionResource: gv.WithResource(plural),
		newObject:            func() PT { return new(T) },
		newList:              func() PL { return new(L) },
	}
	utilruntime.Must(r.configure(options))
	return r
}

// ResourceOf is DefineResource for kinds that are determined at run time. scheme must contain the kind and its list.
func ResourceOf(scheme *runtime.Scheme, kind schema.GroupVersionKind, plural string, options ...ResourceOption) (Resource[Object, runtime.Object], error) {
	r := Resource[Object, runtime.Object]{GroupVersionResource: kind.GroupVersion().WithResource(plural)}
	obj, err := scheme.New(kind)
	if err != nil {
		return r, err
	}
	list, err := scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err != nil {
		return r, err
	}
	if _, ok := obj.(Object); !ok {
		return r, fmt.Errorf("the scheme type of %s is %T, which has no object metadata", kind, obj)
	}
	r.newObject = func() Object { return obj.DeepCopyObject().(Object) }
	r.newList = func() runtime.Object { return list.DeepCopyObject() }
	err = r.configure(append(slices.Clone(options), WithScheme(scheme)))
	return r, err
}

func (r *Resource[T, L]) configure(options []ResourceOption) error {
	var o resourceOptions
	for _, option := range options {
		option(&o)
	}
	own, err := schemeOf(o.scheme, r.GroupVersion(), r.newObject(), r.newList())
	if err != nil {
		return err
	}
	r.protobuf = o.protobuf
	r.codecs, r.parameters = serializer.NewCodecFactory(own), runtime.NewParameterCodec(own)
	return nil
}

// schemeOf returns a scheme for the types and the meta types. Kinds are named as in scheme, or like their Go types.
func schemeOf(scheme *runtime.Scheme, gv schema.GroupVersion, types ...runtime.Object) (*runtime.Scheme, error) {
	own := runtime.NewScheme()
	metav1.AddToGroupVersion(own, schema.GroupVersion{Version: "v1"})
	if err := metav1.AddMetaToScheme(own); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(own, gv)
	if scheme == nil {
		own.AddKnownTypes(gv, types...)
		return own, nil
	}
	for _, obj := range types {
		kinds, _, err := scheme.ObjectKinds(obj)
		if err != nil {
			return nil, fmt.Errorf("scheme of %s: %w", gv, err)
		}
		at := slices.IndexFunc(kinds, func(kind schema.GroupVersionKind) bool { return kind.GroupVersion() == gv })
		if at < 0 {
			return nil, fmt.Errorf("the scheme contains %T as %v, but not in %s", obj, kinds, gv)
		}
		own.AddKnownTypeWithName(kinds[at], obj)
	}
	return own, nil
}

// In returns the client of a cluster-scoped resource, or of a namespaced one across all namespaces.
func (r Resource[T, L]) In(scope Scope) *Client[T, L] { return r.InNamespace(scope, "") }

// InNamespace returns the client of a namespaced resource in one namespace.
func (r Resource[T, L]) InNamespace(scope Scope, namespace string) *Client[T, L] {
	config, gv := scope.Config(), r.GroupVersion()
	config.GroupVersion = &gv
	config.APIPath = apiPath(gv.Group)
	config.NegotiatedSerializer = serializer.WithoutConversionCodecFactory{CodecFactory: r.codecs}
	c, err := rest.RESTClientForConfigAndClient(config, scope.factory.http)
	// NewFactory has parsed the host, the segment of a Scope is escaped, and everything else is set here.
	utilruntime.Must(err)
	var options []gentype.Option[T]
	if r.protobuf {
		options = append(options, gentype.PrefersProtobuf[T]())
	}
	return gentype.NewClientWithList[T, L](r.Resource, c, r.parameters, namespace, r.newObject, r.newList, options...)
}

// sourceAt returns the requests for one resource at a scope.
type sourceAt func(Scope) (listerWatcher, error)

func (r Resource[T, L]) sourceIn(namespace string) sourceAt {
	return func(scope Scope) (listerWatcher, error) {
		c := r.InNamespace(scope, namespace)
		return sourceOf(c.List, c.Watch), nil
	}
}

func metadataSource(gvr schema.GroupVersionResource, namespace string) sourceAt {
	return func(scope Scope) (listerWatcher, error) {
		clients, err := scope.Metadata()
		if err != nil {
			return listerWatcher{}, err
		}
		c := clients.Resource(gvr).Namespace(namespace)
		return sourceOf(c.List, c.Watch), nil
	}
}

func dynamicSource(gvr schema.GroupVersionResource, namespace string) sourceAt {
	return func(scope Scope) (listerWatcher, error) {
		clients, err := scope.Dynamic()
		if err != nil {
			return listerWatcher{}, err
		}
		c := clients.Resource(gvr).Namespace(namespace)
		return sourceOf(c.List, c.Watch), nil
	}
}

func sourceOf[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error), watching func(context.Context, metav1.ListOptions) (watch.Interface, error)) listerWatcher {
	return listerWatcher{
		list:  func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return list(ctx, opts) },
		watch: watching,
	}
}
