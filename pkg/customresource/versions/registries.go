package versions

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Lister returns a lister for the objects of a version of a schema. PlainJSON encodes its results. It may be
// used until done is called.
func (s *Stores) Lister(sch *definitions.Schema, version *apiextensionsv1.CustomResourceDefinitionVersion) (lister rest.Lister, done func(), err error) {
	v, done := s.use(sch, version.Name)
	if v != nil {
		if store := v.listStore.Load(); store != nil {
			return jsonLister{store}, done, nil
		}
	}
	done()
	v, stored, done, err := s.open(sch, version.Name)
	if err != nil {
		return nil, done, err
	}
	strategy := customresource.NewStrategy(nil, sch.CRD().Spec.Scope == apiextensionsv1.NamespaceScoped, v.gvk, nil, nil, nil, nil, nil, version.SelectableFields)
	listKind := v.gvk.GroupVersion().WithKind(sch.Names().ListKind)
	registry := *stored.Store
	registry.Storage = genericregistry.DryRunnableStorage{Storage: v}
	registry.PredicateFunc = strategy.MatchCustomResourceDefinitionStorage
	registry.NewListFunc = func() runtime.Object {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(listKind)
		return list
	}
	v.listStore.Store(&registry)
	return jsonLister{&registry}, done, nil
}

// jsonItemsKey is the context key of a slice that receives the objects of a list as JSON, instead of the list.
type jsonItemsKey struct{}

type jsonLister struct {
	*genericregistry.Store
}

var _ rest.Lister = jsonLister{}

func (l jsonLister) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	var items []json.RawMessage
	obj, err := l.Store.List(context.WithValue(ctx, jsonItemsKey{}, &items), options)
	if err != nil {
		return nil, err
	}
	list, ok := obj.(*unstructured.UnstructuredList)
	if !ok {
		return nil, fmt.Errorf("%T is not a list of custom resources", obj)
	}
	return &jsonList{UnstructuredList: *list, items: items}, nil
}

// jsonList is a list of encoded items.
type jsonList struct {
	unstructured.UnstructuredList
	items []json.RawMessage
}

// DeepCopyObject implements runtime.Object. The items are immutable.
func (l *jsonList) DeepCopyObject() runtime.Object {
	return &jsonList{UnstructuredList: *l.UnstructuredList.DeepCopy(), items: l.items}
}

// write writes the keys in the same order as upstream.
func (l *jsonList) write(w io.Writer) error {
	metadata, err := json.Marshal(l.Object["metadata"])
	if err != nil {
		return fmt.Errorf("encoding the metadata of a list: %w", err)
	}
	if _, err := fmt.Fprintf(w, `{"apiVersion":%q,"items":[`, l.GetAPIVersion()); err != nil {
		return err
	}
	comma := []byte(",")
	for i, item := range l.items {
		if i > 0 {
			if _, err := w.Write(comma); err != nil {
				return err
			}
		}
		if _, err := w.Write(item); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "],\"kind\":%q,\"metadata\":%s}\n", l.GetKind(), metadata)
	return err
}

// PlainJSON encodes results of a Lister, and errors, as JSON.
var PlainJSON runtime.NegotiatedSerializer = plainJSON{apiextensionsserver.Codecs}

type plainJSON struct{ runtime.NegotiatedSerializer }

func (s plainJSON) SupportedMediaTypes() []runtime.SerializerInfo {
	info, _ := runtime.SerializerInfoForMediaType(s.NegotiatedSerializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return []runtime.SerializerInfo{info}
}

func (s plainJSON) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return listEncoder{s.NegotiatedSerializer.EncoderForVersion(e, gv)}
}

type listEncoder struct {
	runtime.Encoder
}

func (e listEncoder) Encode(obj runtime.Object, w io.Writer) error {
	if list, ok := obj.(*jsonList); ok {
		return list.write(w)
	}
	return e.Encoder.Encode(obj, w)
}

// CoreWriter returns the writer for the objects of a version of a schema. It may be used until done is called.
func (s *Stores) CoreWriter(sch *definitions.Schema, version *apiextensionsv1.CustomResourceDefinitionVersion) (writer *CoreWriter, done func(), err error) {
	v, done := s.use(sch, version.Name)
	if v == nil {
		if v, _, done, err = s.open(sch, version.Name); err != nil {
			return nil, done, err
		}
	}
	if writer = v.writer.Load(); writer != nil {
		return writer, done, nil
	}
	if writer, err = s.newCoreWriter(sch, version, v); err != nil {
		return nil, done, err
	}
	if !v.writer.CompareAndSwap(nil, writer) {
		writer = v.writer.Load()
	}
	return writer, done, nil
}

func (s *Stores) newCoreWriter(sch *definitions.Schema, version *apiextensionsv1.CustomResourceDefinitionVersion, v *versionStore) (*CoreWriter, error) {
	options, err := s.restOptions(sch)
	if err != nil {
		return nil, err
	}
	config := *options.StorageConfig
	config.Codec = v.codec
	options.StorageConfig, options.CountMetricPollPeriod = &config, 0
	options.Decorator = func(
		*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error),
		func() runtime.Object, func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		return v, func() {}, nil // created and closed by the upstream handler
	}
	var hasStatus *apiextensions.CustomResourceSubresourceStatus
	var hasScale *apiextensions.CustomResourceSubresourceScale
	if of := version.Subresources; of != nil && of.Status != nil {
		hasStatus = &apiextensions.CustomResourceSubresourceStatus{}
	}
	if of := version.Subresources; of != nil && of.Scale != nil {
		scale := apiextensions.CustomResourceSubresourceScale(*of.Scale)
		hasScale = &scale
	}
	validates, err := newCoreSchema(version)
	if err != nil {
		return nil, err
	}
	standIn := schema.GroupVersionKind{Group: coreStandIn, Version: v.gvk.Version, Kind: v.gvk.Kind}
	upstream := customresource.NewStrategy(crdserverscheme.NewUnstructuredObjectTyper(), sch.Spec().Scope == apiextensionsv1.NamespaceScoped,
		standIn, nil, nil, nil, hasStatus, hasScale, version.SelectableFields)
	singular := schema.GroupResource{Group: sch.Resource.Group, Resource: sch.Names().Singular}
	made, err := customresource.NewStorage(sch.Resource, singular, v.gvk, v.gvk.GroupVersion().WithKind(sch.Names().ListKind), upstream,
		options, sch.Names().Categories, rest.NewDefaultTableConvertor(sch.Resource), replicasPaths(sch))
	if err != nil {
		return nil, fmt.Errorf("making the storage of %s: %w", sch.Resource, err)
	}
	strategy := &coreStrategy{RESTCreateUpdateStrategy: upstream, gvk: v.gvk, schema: validates, replicas: s.config.Replicas}
	made.CustomResource.CreateStrategy, made.CustomResource.UpdateStrategy = strategy, strategy
	writer := &CoreWriter{Objects: made.CustomResource, Replicas: &Replicas{made.CustomResource.Store}, scopes: map[string]*handlers.RequestScope{}}
	if made.Scale != nil {
		writer.Scale = made.Scale
	}
	if made.Status != nil {
		store := *made.CustomResource.Store
		store.CreateStrategy = nil
		store.UpdateStrategy = &coreStrategy{
			RESTCreateUpdateStrategy: customresource.NewStatusStrategy(upstream), gvk: v.gvk, schema: validates, status: true,
		}
		writer.Status = coreStatus{&store}
	}
	return writer, nil
}

// replicasPaths returns the path of the scale's replicas by version. It is used to convert between the managed
// fields of a scale and of its object.
func replicasPaths(sch *definitions.Schema) managedfields.ResourcePathMappings {
	paths := managedfields.ResourcePathMappings{}
	for i := range sch.Spec().Versions {
		v := &sch.Spec().Versions[i]
		var path fieldpath.Path
		if v.Subresources != nil && v.Subresources.Scale != nil {
			for name := range strings.SplitSeq(strings.TrimPrefix(v.Subresources.Scale.SpecReplicasPath, "."), ".") {
				path = append(path, fieldpath.PathElement{FieldName: &name})
			}
		}
		paths[schema.GroupVersion{Group: sch.Resource.Group, Version: v.Name}.String()] = path
	}
	return paths
}

// coreStatus is the status subresource in the core group.
type coreStatus struct{ *genericregistry.Store }

var _ rest.Patcher = coreStatus{}

func (s coreStatus) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.Store.Update(ctx, name, info, create, update, false, options)
}
