package customresource

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Most lists of custom resources are read by controllers, as plain JSON. They
// are served here and not by the upstream handler, which copies every object
// and encodes it anew: a view remembers the JSON of its objects, and a list is
// those put together. Everything else, such as tables, metadata, pretty
// printing and deprecated versions, is left to the upstream handler.

// wantsPlainJSON says whether the client is content with a list as plain JSON.
func wantsPlainJSON(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		return false
	}
	for _, agent := range []string{"curl", "Wget", "Mozilla/5.0"} { // get it pretty
		if strings.HasPrefix(r.UserAgent(), agent) {
			return false
		}
	}
	clauses := goautoneg.ParseAccept(r.Header.Get("Accept"))
	if len(clauses) == 0 {
		return true
	}
	first := clauses[0]
	return len(first.Params) == 0 && (first.Type == "application" && (first.SubType == "json" || first.SubType == "*") ||
		first.Type == "*" && first.SubType == "*")
}

// serveList serves a list as plain JSON, and says whether it did.
func (s *Server) serveList(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, sch *Schema) bool {
	if info.Verb != "list" || info.Subresource != "" || sch.metadataOnly || !wantsPlainJSON(r) {
		return false
	}
	version := sch.version(info.APIVersion)
	namespaced := sch.crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	if version == nil || !version.Served || version.Deprecated || (info.Namespace != "" && !namespaced) {
		return false
	}
	// Upstream's handler does not know of this request, and does not wait for it
	// before it destroys the store.
	store, done, err := s.listStore(sch, version)
	defer done()
	if err != nil {
		return false // and the upstream handler answers with what is wrong
	}
	gvk := schema.GroupVersionKind{Group: sch.Resource.Group, Version: version.Name, Kind: sch.Names().Kind}
	scope := &handlers.RequestScope{
		Namer:            handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: !namespaced},
		Serializer:       listSerializer{},
		Convertor:        fieldLabels{version: version, namespaced: namespaced},
		Kind:             gvk,
		Resource:         sch.Resource.WithVersion(version.Name),
		MetaGroupVersion: metav1.SchemeGroupVersion,
		HubGroupVersion:  gvk.GroupVersion(),
	}
	handler := handlers.ListResource(jsonLister{store}, nil, scope, false, 0)
	resource := s.named.name(sch.Resource)
	metrics.InstrumentHandlerFunc("LIST", resource.Group, gvk.Version, resource.Resource, "", metrics.CleanScope(info),
		metrics.APIServerComponent, false, "", handler)(w, r)
	return true
}

// listStore returns the registry of a version, for lists; it is good until done
// is called.
func (s *Server) listStore(sch *Schema, version *apiextensionsv1.CustomResourceDefinitionVersion) (store *genericregistry.Store, done func(), err error) {
	v, done := s.raws.use(sch, version.Name)
	if v != nil {
		if store := v.listStore.Load(); store != nil {
			return store, done, nil
		}
	}
	done()
	// Makes the upstream handler's serving info, and with it the views.
	of, err := s.instances.GetCustomResourceListerCollectionDeleter(sch.crd)
	if err != nil {
		return nil, done, err
	}
	stored, ok := of.(*customresource.REST)
	if v, done = s.raws.use(sch, version.Name); v == nil || !ok {
		return nil, done, fmt.Errorf("there is no storage of %s in version %s", sch.Resource, version.Name)
	}
	strategy := customresource.NewStrategy(nil, sch.crd.Spec.Scope == apiextensionsv1.NamespaceScoped, v.gvk, nil, nil, nil, nil, nil, version.SelectableFields)
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
	return &registry, done, nil
}

// jsonItems is where a view puts the JSON of the objects of a list, instead of
// the objects.
type jsonItems struct {
	items []json.RawMessage
}

type jsonItemsKey struct{}

// jsonItemsFrom returns where to put the items of a list, or nil.
func jsonItemsFrom(ctx context.Context) *jsonItems {
	items, _ := ctx.Value(jsonItemsKey{}).(*jsonItems)
	return items
}

// jsonLister lists objects as JSON.
type jsonLister struct {
	*genericregistry.Store
}

var _ rest.Lister = jsonLister{}

// List implements rest.Lister.
func (l jsonLister) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	var items jsonItems
	obj, err := l.Store.List(context.WithValue(ctx, jsonItemsKey{}, &items), options)
	if err != nil {
		return nil, err
	}
	list, ok := obj.(*unstructured.UnstructuredList)
	if !ok {
		return nil, fmt.Errorf("%T is no list of custom resources", obj)
	}
	return &jsonList{UnstructuredList: *list, items: items.items}, nil
}

// jsonList is a list whose items are JSON already.
type jsonList struct {
	unstructured.UnstructuredList
	items []json.RawMessage
}

// DeepCopyObject implements runtime.Object; nobody changes the items.
func (l *jsonList) DeepCopyObject() runtime.Object {
	return &jsonList{UnstructuredList: *l.UnstructuredList.DeepCopy(), items: l.items}
}

// write writes the list as upstream would: with its keys in order.
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

// listSerializer writes lists, and errors, as plain JSON.
type listSerializer struct{}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (listSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return plainJSON }

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (listSerializer) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return listEncoder{apiextensionsserver.Codecs.EncoderForVersion(e, gv)}
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (listSerializer) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return apiextensionsserver.Codecs.DecoderToVersion(d, gv)
}

var plainJSON = func() []runtime.SerializerInfo {
	info, _ := runtime.SerializerInfoForMediaType(apiextensionsserver.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return []runtime.SerializerInfo{info}
}()

type listEncoder struct {
	runtime.Encoder
}

// Encode implements runtime.Encoder.
func (e listEncoder) Encode(obj runtime.Object, w io.Writer) error {
	if list, ok := obj.(*jsonList); ok {
		return list.write(w)
	}
	return e.Encoder.Encode(obj, w)
}

// fieldLabels knows the fields that objects of a version can be selected by.
type fieldLabels struct {
	version    *apiextensionsv1.CustomResourceDefinitionVersion
	namespaced bool
}

var _ runtime.ObjectConvertor = fieldLabels{}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (f fieldLabels) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (field, of string, err error) {
	if label == "metadata.name" || (label == "metadata.namespace" && f.namespaced) {
		return label, value, nil
	}
	for _, selectable := range f.version.SelectableFields {
		if label == strings.TrimPrefix(selectable.JSONPath, ".") {
			return label, value, nil
		}
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

// Convert implements runtime.ObjectConvertor; nothing is converted here.
func (fieldLabels) Convert(_, out, _ any) error { return fmt.Errorf("%T cannot be converted", out) }

// ConvertToVersion implements runtime.ObjectConvertor; nothing is converted
// here.
func (fieldLabels) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
