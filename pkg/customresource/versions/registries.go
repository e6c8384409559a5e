package versions

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

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
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
)

// Lister returns a lister for the objects of a version of a schema. Plain encodes its results as JSON. It may be
// used until done is called.
func (s *Stores) Lister(sch *definitions.Schema, version *apiextensionsv1.CustomResourceDefinitionVersion) (lister rest.Lister, done func(), err error) {
	v, stored, done, err := s.open(sch, version.Name)
	if err != nil {
		return nil, done, err
	}
	if store := v.listStore.Load(); store != nil {
		return jsonLister{store}, done, nil
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

// Plain encodes results of a Lister, objects without a Go type, events and errors in JSON and YAML.
var Plain runtime.NegotiatedSerializer = plain{apiextensionsserver.Codecs}

type plain struct{ runtime.NegotiatedSerializer }

func (s plain) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType != runtime.ContentTypeJSON && info.MediaType != runtime.ContentTypeYAML
	})
}

func (s plain) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return plainEncoder{e, s.NegotiatedSerializer.EncoderForVersion(e, gv)}
}

type plainEncoder struct {
	plain runtime.Encoder
	runtime.Encoder
}

func (e plainEncoder) Encode(obj runtime.Object, w io.Writer) error {
	switch obj := obj.(type) {
	case *jsonList: // the client accepts JSON
		return obj.write(w)
	case runtime.Unstructured, *metav1.WatchEvent:
		return e.plain.Encode(obj, w)
	default:
		return e.Encoder.Encode(obj, w)
	}
}

// CoreWriter returns the writer for the objects of a version of a schema. It may be used until done is called.
func (s *Stores) CoreWriter(sch *definitions.Schema, version *apiextensionsv1.CustomResourceDefinitionVersion) (writer *CoreWriter, done func(), err error) {
	v, _, done, err := s.open(sch, version.Name)
	if err != nil {
		return nil, done, err
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
	rules, err := sch.Rules(version.Name)
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
	strategy := &coreStrategy{RESTCreateUpdateStrategy: upstream, gvk: v.gvk, rules: rules, replicas: s.config.Replicas}
	made.CustomResource.CreateStrategy, made.CustomResource.UpdateStrategy = strategy, strategy
	writer := &CoreWriter{Objects: made.CustomResource, Replicas: &Replicas{made.CustomResource.Store}, scopes: map[string]*handlers.RequestScope{}}
	if made.Scale != nil {
		writer.Scale = made.Scale
	}
	if made.Status != nil {
		store := *made.CustomResource.Store
		store.CreateStrategy = nil
		store.UpdateStrategy = &coreStrategy{
			RESTCreateUpdateStrategy: customresource.NewStatusStrategy(upstream), gvk: v.gvk, rules: rules, status: true,
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

// Modify updates an object of a schema in the logical cluster of ctx in its stored version, without validation
// or admission. It calls change again after a conflict, and returns its errors.
func (s *Stores) Modify(ctx context.Context, sch *definitions.Schema, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	v, key, done, err := s.storageOf(ctx, sch, name)
	defer done()
	if err != nil {
		return nil, err
	}
	written := &unstructured.Unstructured{}
	err = v.GuaranteedUpdate(ctx, key, written, false, nil, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		u, ok := in.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("the storage of custom resources returned a %T", in)
		}
		return u, change(u)
	}), nil)
	return written, storeerr.InterpretUpdateError(err, sch.Resource, name)
}

// Create stores an object in its stored version in the logical cluster of ctx, including status and finalizers, without
// validation, admission or managed fields. The error is AlreadyExists if an object has the name.
func (s *Stores) Create(ctx context.Context, sch *definitions.Schema, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	v, key, done, err := s.storageOf(ctx, sch, object.GetName())
	defer done()
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(object)
	object.SetGeneration(1)
	written := &unstructured.Unstructured{}
	if err := v.Create(ctx, key, object, written, 0); err != nil {
		return nil, storeerr.InterpretCreateError(err, sch.Resource, object.GetName())
	}
	return written, nil
}

// Each calls visit for each stored object of a schema in the logical cluster of ctx.
func (s *Stores) Each(ctx context.Context, sch *definitions.Schema, visit func(*packed.Object)) error {
	v, key, done, err := s.storageOf(ctx, sch, "")
	defer done()
	if err != nil {
		return err
	}
	var stored packed.List
	if err := v.raw.GetList(ctx, key, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &stored); err != nil {
		return storeerr.InterpretListError(err, sch.Resource)
	}
	for i := range stored.Items {
		visit(&stored.Items[i])
	}
	return nil
}

// storageOf returns the store of the stored version of a schema, and the key of an object, or the prefix of
// all keys if name is empty. The store may be used until done is called.
func (s *Stores) storageOf(ctx context.Context, sch *definitions.Schema, name string) (v *versionStore, key string, done func(), err error) {
	v, stored, done, err := s.open(sch, sch.StoredVersion())
	if err != nil {
		return nil, "", done, err
	}
	if name == "" {
		return v, stored.KeyRootFunc(ctx), done, nil
	}
	key, err = stored.KeyFunc(ctx, name)
	return v, key, done, err
}

// Empty deletes all objects of a schema, with its identity, in the logical cluster of ctx, and returns the
// remaining ones. It bypasses admission but respects finalizers. It uses only keys and metadata, so that it
// also deletes objects that cannot be read with the schema.
func (s *Stores) Empty(ctx context.Context, sch *definitions.Schema) (definitions.Remaining, error) {
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	v, root, done, err := s.storageOf(ctx, sch, "")
	defer done()
	if err != nil {
		return definitions.Remaining{}, err
	}
	everything := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	var all packed.List
	if err := v.raw.GetList(ctx, root, everything, &all); err != nil {
		return definitions.Remaining{}, fmt.Errorf("listing instances: %w", err)
	}
	if len(all.Items) == 0 {
		return definitions.Remaining{}, nil
	}
	keyOf := keyFunc(root)
	for i := range all.Items {
		key, err := keyOf(&all.Items[i])
		if err == nil {
			err = v.raw.beginDeletion(ctx, key, &all.Items[i])
		}
		if err != nil {
			return definitions.Remaining{}, fmt.Errorf("deleting instances: %w", err)
		}
	}
	var rest packed.List
	if err := v.raw.GetList(ctx, root, everything, &rest); err != nil {
		return definitions.Remaining{}, fmt.Errorf("listing instances: %w", err)
	}
	remaining := definitions.Remaining{Objects: len(rest.Items), Finalizers: map[string]int{}}
	for i := range rest.Items {
		for _, f := range rest.Items[i].GetFinalizers() {
			remaining.Finalizers[f]++
		}
	}
	return remaining, nil
}

// beginDeletion deletes an object, or marks it as being deleted if it has finalizers. It ignores conflicts:
// the caller counts the remaining objects and retries.
func (s *rawStore) beginDeletion(ctx context.Context, key string, object *packed.Object) error {
	uid, version := object.GetUID(), object.GetResourceVersion()
	same := &storage.Preconditions{UID: &uid, ResourceVersion: &version}
	var out packed.Object
	var err error
	switch {
	case len(object.GetFinalizers()) == 0:
		err = s.Delete(ctx, key, &out, same, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	case object.GetDeletionTimestamp() == nil:
		err = s.GuaranteedUpdate(ctx, key, &out, false, same, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
			stored, err := storedObject(in)
			if err != nil {
				return nil, err
			}
			u, now, seconds := stored.Unstructured(), metav1.NewTime(time.Now()), int64(0)
			u.SetDeletionTimestamp(&now)
			u.SetDeletionGracePeriodSeconds(&seconds)
			return u, nil
		}), nil)
	}
	if storage.IsNotFound(err) || storage.IsConflict(err) || storage.IsInvalidObj(err) {
		return nil
	}
	return err
}
