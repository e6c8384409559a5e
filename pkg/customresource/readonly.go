package customresource

import (
	"context"
	"io"
	"net/http"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
)

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
		writeError(w, r, info, readOnly(d.Schema.Resource, info.Verb))
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
	scope, err := readScope(d.Schema, version)
	if err != nil {
		writeError(w, r, info, apierrors.NewInternalError(err))
		return
	}
	handler, verb := handlers.ListResource(reader, reader, scope, false, minWatchTimeout), "LIST"
	switch info.Verb {
	case "get":
		handler, verb = handlers.GetResource(reader, scope), "GET"
	case "watch":
		verb = "WATCH"
	}
	resource := s.metricName(d.Schema.Resource)
	metrics.InstrumentHandlerFunc(verb, resource.Group, version.Name, resource.Resource, "", metrics.CleanScope(info),
		metrics.APIServerComponent, false, "", handler)(w, r)
}

// readOnly is the error for a write.
func readOnly(resource schema.GroupResource, verb string) error {
	err := apierrors.NewMethodNotSupported(resource, verb)
	err.ErrStatus.Message = verb + " is not supported on " + resource.String() + ": the objects are read-only replicas from another workspace"
	return err
}

func readScope(sch *definitions.Schema, version *apiextensionsv1.CustomResourceDefinitionVersion) (*handlers.RequestScope, error) {
	columns := version.AdditionalPrinterColumns
	if len(columns) == 0 {
		columns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}}
	}
	table, err := tableconvertor.New(columns)
	if err != nil {
		return nil, err
	}
	gvk := schema.GroupVersionKind{Group: sch.Resource.Group, Version: version.Name, Kind: sch.Names().Kind}
	return &handlers.RequestScope{
		Namer:            handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: true},
		Serializer:       asTheyAre{apiextensionsserver.Codecs},
		Convertor:        fieldLabels{version: version},
		Kind:             gvk,
		Resource:         sch.Resource.WithVersion(version.Name),
		TableConvertor:   table,
		MetaGroupVersion: metav1.SchemeGroupVersion,
		HubGroupVersion:  gvk.GroupVersion(),
	}, nil
}

// asTheyAre encodes objects without a Go type in JSON and YAML.
type asTheyAre struct{ runtime.NegotiatedSerializer }

func (s asTheyAre) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType != runtime.ContentTypeJSON && info.MediaType != runtime.ContentTypeYAML
	})
}

func (s asTheyAre) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return plainEncoder{e, s.NegotiatedSerializer.EncoderForVersion(e, gv)}
}

// plainEncoder encodes objects without a Go type, and events, with plain.
type plainEncoder struct {
	plain runtime.Encoder
	runtime.Encoder
}

func (e plainEncoder) Encode(obj runtime.Object, w io.Writer) error {
	switch obj.(type) {
	case runtime.Unstructured, *metav1.WatchEvent:
		return e.plain.Encode(obj, w)
	default:
		return e.Encoder.Encode(obj, w)
	}
}
