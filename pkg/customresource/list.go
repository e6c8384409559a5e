package customresource

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
)

// Most lists of custom resources are read by controllers, as plain JSON. They
// are served here and not by the upstream handler, which copies every object
// and encodes it anew: a view remembers the JSON of its objects, and a list is
// those put together. Everything else, such as tables, metadata, pretty
// printing and deprecated versions, is left to the upstream handler.

// wantsPlainJSON reports whether the client is content with a list as plain JSON.
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
	// Upstream's handler does not know of this request, and does not wait for it
	// before it destroys the store.
	lister, done, err := s.stores.Lister(sch, version)
	defer done()
	if err != nil {
		return false // and the upstream handler answers with what is wrong
	}
	gvk := schema.GroupVersionKind{Group: sch.Resource.Group, Version: version.Name, Kind: sch.Names().Kind}
	scope := &handlers.RequestScope{
		Namer:            handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: !namespaced},
		Serializer:       versions.PlainJSON{},
		Convertor:        fieldLabels{version: version, namespaced: namespaced},
		Kind:             gvk,
		Resource:         sch.Resource.WithVersion(version.Name),
		MetaGroupVersion: metav1.SchemeGroupVersion,
		HubGroupVersion:  gvk.GroupVersion(),
	}
	handler := handlers.ListResource(lister, nil, scope, false, 0)
	resource := s.metricName(sch.Resource)
	metrics.InstrumentHandlerFunc("LIST", resource.Group, gvk.Version, resource.Resource, "", metrics.CleanScope(info),
		metrics.APIServerComponent, false, "", handler)(w, r)
	return true
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
