package versions

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

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
