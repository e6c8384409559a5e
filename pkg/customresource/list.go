package customresource

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/munnerz/goautoneg"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/request"
)

// Most lists of custom resources are read by controllers as plain JSON. The upstream handler copies and encodes
// every object for each request. Here, a list concatenates the JSON of objects, which version stores cache. All
// other lists, e.g. tables, metadata and deprecated versions, are left to the upstream handler.

// wantsPlainJSON reports whether the client accepts a list as plain JSON.
func wantsPlainJSON(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		return false
	}
	for _, agent := range []string{"curl", "Wget", "Mozilla/5.0"} { // receive pretty-printed JSON
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

// serveList serves a list as plain JSON, and reports whether it did.
func (s *Server) serveList(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, sch *definitions.Schema) bool {
	if info.Verb != "list" || info.Subresource != "" || sch.MetadataOnly || !wantsPlainJSON(r) {
		return false
	}
	version := sch.Version(info.APIVersion)
	namespaced := sch.CRD().Spec.Scope == apiextensionsv1.NamespaceScoped
	if version == nil || !version.Served || version.Deprecated || (info.Namespace != "" && !namespaced) {
		return false
	}
	// Lister keeps the store open, because upstream's handler does not wait for this request.
	lister, done, err := s.stores.Lister(sch, version)
	defer done()
	if err != nil {
		return false // the upstream handler returns the error
	}
	scope := readScope(sch, version, namespaced)
	s.instrumented(info, sch.Resource, false, handlers.ListResource(lister, nil, scope, false, 0))(w, r)
	return true
}

func readScope(sch *definitions.Schema, version *apiextensionsv1.CustomResourceDefinitionVersion, namespaced bool) *handlers.RequestScope {
	gvk := schema.GroupVersionKind{Group: sch.Resource.Group, Version: version.Name, Kind: sch.Names().Kind}
	return &handlers.RequestScope{
		Namer:            handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: !namespaced},
		Serializer:       versions.Plain,
		Convertor:        fieldLabels{version: version, namespaced: namespaced},
		Kind:             gvk,
		Resource:         sch.Resource.WithVersion(version.Name),
		MetaGroupVersion: metav1.SchemeGroupVersion,
		HubGroupVersion:  gvk.GroupVersion(),
	}
}

// fieldLabels accepts the selectable fields of a version. It does not convert anything.
type fieldLabels struct {
	runtime.ObjectConvertor // a method that handlers do not call

	version    *apiextensionsv1.CustomResourceDefinitionVersion
	namespaced bool
}

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

func (fieldLabels) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

const partialMetadata = "PartialObjectMetadata"

// prefersMetadata reports whether the client prefers the metadata of objects to the objects.
func prefersMetadata(r *http.Request) bool {
	return isMetadata(preferred(r))
}

func preferred(r *http.Request) goautoneg.Accept {
	if clauses := goautoneg.ParseAccept(r.Header.Get("Accept")); len(clauses) > 0 {
		return clauses[0]
	}
	return goautoneg.Accept{}
}

// errNoList is returned for PartialObjectMetadataList if the response is a single object.
var errNoList = request.StatusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
	"you requested "+partialMetadata+"List, but the requested object is not a list: accept "+partialMetadata)

// prefersListOfOne reports whether the client prefers PartialObjectMetadataList for a single object. Upstream
// considers any object without a Go type to be a list, and returns 500, possibly after a write.
func prefersListOfOne(r *http.Request, info *genericapirequest.RequestInfo) bool {
	if !slices.Contains([]string{"get", "create", "update", "patch"}, info.Verb) || !strings.Contains(r.Header.Get("Accept"), partialMetadata) {
		return false // avoids parsing most headers
	}
	first := preferred(r)
	return isMetadata(first) && first.Params["as"] != partialMetadata && slices.Contains([]string{"v1", "v1beta1"}, first.Params["v"])
}

func isMetadata(clause goautoneg.Accept) bool {
	as := clause.Params["as"]
	return clause.Params["g"] == "meta.k8s.io" && (as == partialMetadata || as == partialMetadata+"List")
}

// onlyMetadata removes the media types that accept more than metadata, so that a response never falls back to
// whole objects.
func onlyMetadata(h http.Header) http.Header {
	h = h.Clone()
	var kept []string
	for clause := range strings.SplitSeq(strings.Join(h.Values("Accept"), ","), ",") {
		parsed := goautoneg.ParseAccept(clause)
		if len(parsed) == 1 && isMetadata(parsed[0]) {
			kept = append(kept, clause)
		}
	}
	h.Set("Accept", strings.Join(kept, ","))
	return h
}

// Objects that are not stored here (definitions.Objects) are served by upstream's generic handlers instead of
// its handler of custom resources.

type readOnlyKey struct{}

// WithReadOnly returns a context in which requests read the objects of a definition that are not stored here.
func WithReadOnly(ctx context.Context, d *definitions.Definition) context.Context {
	return context.WithValue(ctx, readOnlyKey{}, d)
}

func (s *Server) serveReadOnly(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, cluster request.Cluster, d *definitions.Definition) {
	ctx := r.Context()
	version := d.Schema.Version(info.APIVersion)
	switch {
	case version == nil, !version.Served, info.Subresource != "", info.Namespace != "":
		writeError(w, r, info, apierrors.NewGenericServerResponse(http.StatusNotFound, info.Verb, d.Schema.Resource, info.Name, "the server could not find the requested resource", 0, false))
		return
	case !slices.Contains([]string{"get", "list", "watch"}, info.Verb):
		err := apierrors.NewMethodNotSupported(d.Schema.Resource, info.Verb)
		err.ErrStatus.Message = fmt.Sprintf("%s is not supported on %s: the objects are read-only replicas from another workspace", info.Verb, d.Schema.Resource)
		writeError(w, r, info, err)
		return
	case prefersListOfOne(r, info):
		writeError(w, r, info, errNoList)
		return
	}
	reader, err := d.Objects.In(ctx, cluster, d.Schema, version.Name)
	if err != nil {
		writeError(w, r, info, err)
		return
	}
	columns := version.AdditionalPrinterColumns
	if len(columns) == 0 {
		columns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}}
	}
	scope := readScope(d.Schema, version, false)
	if scope.TableConvertor, err = tableconvertor.New(columns); err != nil {
		writeError(w, r, info, apierrors.NewInternalError(err))
		return
	}
	handler := handlers.ListResource(reader, reader, scope, false, minWatchTimeout)
	if info.Verb == "get" {
		handler = handlers.GetResource(reader, scope)
	}
	s.instrumented(info, d.Schema.Resource, false, handler)(w, r)
}
