package customresource

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apiextensionshelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

type upstream interface {
	http.Handler
	GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
}

// minWatchTimeout is the minimum duration of a watch without a timeout in its request.
const minWatchTimeout = 30 * time.Minute

// Server serves custom resources of all logical clusters. Create it with New, add it to the handler chain with
// Wrap, install the API of definitions with InstallCRDs, and Run it.
type Server struct {
	releaseAfter time.Duration
	replicas     bool

	table   *definitions.Table
	lister  *syntheticLister
	system  *definitions.System
	sources *definitions.Sources
	// crds is nil if there are no CustomResourceDefinition objects.
	crds    *definitions.Storage
	stores  *versions.Stores
	streams *streams
	hooks   *versions.Hooks

	patterns  interface{ Trim() }
	upstream  upstream
	admission admission.Interface

	builtIns  *documents.BuiltIns
	documents *documents.Documents
	// plurals caches the last resources of kinds in any logical cluster, as []string by schema.GroupKind. Most
	// logical clusters agree, and its users verify the result.
	plurals *lru.Cache
}

// AddSource adds a source of definitions between system definitions and CustomResourceDefinition objects,
// until remove is called. Watches of resources that another source served before end, and definitions get
// names that the source releases.
func (s *Server) AddSource(source definitions.Source) (remove func()) {
	return s.sources.Add(source)
}

// Definitions returns the CustomResourceDefinition objects, which must exist, for their controller.
func (s *Server) Definitions() *definitions.Managed {
	return definitions.NewManaged(s.crds, s.stores.Empty)
}

// InstallCRDs registers apiextensions.k8s.io/v1 with a generic API server.
func (s *Server) InstallCRDs(server *genericapiserver.GenericAPIServer) error {
	if s.crds == nil {
		return errors.New("customresource: this server has only system definitions and does not serve CustomResourceDefinitions")
	}
	return s.crds.Install(server)
}

func writeError(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, err error) {
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	responsewriters.ErrorNegotiated(err, apiextensionsserver.Codecs, gv, w, r)
}

// metricName returns the name of a resource in metrics. All resources that are not system definitions share
// one name, because tenants choose their names and series are never removed.
func (s *Server) metricName(resource schema.GroupResource) schema.GroupResource {
	if s.system.Of(resource) != nil {
		return resource
	}
	return multitenant.Unnamed
}

func (s *Server) instrumented(info *genericapirequest.RequestInfo, resource schema.GroupResource, deprecated bool, handler http.HandlerFunc) http.HandlerFunc {
	resource = s.metricName(resource)
	return metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), resource.Group, info.APIVersion, resource.Resource, info.Subresource,
		metrics.CleanScope(info), metrics.APIServerComponent, deprecated, "", handler)
}

// counted reports whether the upstream handler serves and counts requests of this kind.
func counted(info *genericapirequest.RequestInfo, crd *apiextensionsv1.CustomResourceDefinition) bool {
	if info.Subresource == "" {
		return slices.Contains(documents.ObjectVerbs, info.Verb)
	}
	served, err := apiextensionshelpers.GetSubresourcesForVersion(crd, info.APIVersion)
	if err != nil || served == nil || !slices.Contains(documents.SubresourceVerbs, info.Verb) {
		return false
	}
	return info.Subresource == "status" && served.Status != nil || info.Subresource == "scale" && served.Scale != nil
}

// countedContext returns a different request info for the first call. The upstream handler makes the first
// call and uses it for metrics; registries make later calls and use them for errors.
type countedContext struct {
	context.Context //nolint:containedctx // it is a context

	info, first *genericapirequest.RequestInfo
	called      atomic.Bool
}

func (c *countedContext) Value(key any) any {
	value := c.Context.Value(key)
	if info, ok := value.(*genericapirequest.RequestInfo); ok && info == c.info && c.called.CompareAndSwap(false, true) {
		return c.first
	}
	return value
}

// serveUpstream calls the upstream handler with a synthetic definition. The handler keeps info.
func (s *Server) serveUpstream(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, crd *apiextensionsv1.CustomResourceDefinition) {
	name := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if counted(info, crd) { // otherwise the handler only returns an error with the name
		name = s.metricName(name)
	}
	first := *info
	defer s.lister.issue(&first, name, crd)()
	ctx := &countedContext{Context: genericapirequest.WithRequestInfo(r.Context(), info), info: info, first: &first}
	s.upstream.ServeHTTP(w, r.WithContext(ctx)) //nolint:contextcheck // it inherits the request's
}

// syntheticLister replaces the lister and informer of the upstream handler. It returns the synthetic
// definition that was resolved for a request.
//
// The handler requests "<resource>.<group>" without a context. Therefore the group in its request info is
// replaced by a one-time key, for which the lister restores the group, or its name in metrics.
type syntheticLister struct {
	servingInfos                           prometheus.Counter
	listers.CustomResourceDefinitionLister // methods that the handler does not call

	table *definitions.Table

	last   atomic.Uint64
	issued sync.Map // "<resource>.<one-time key>" to *oneTime

	// building is the schema for which the upstream handler is creating serving info. The handler requests a
	// synthetic name only under its own lock, immediately before it requests the storage.
	building atomic.Pointer[definitions.Schema]

	informer capturingInformer
}

var (
	_ informers.CustomResourceDefinitionInformer = (*syntheticLister)(nil)
	_ listers.CustomResourceDefinitionLister     = (*syntheticLister)(nil)
	_ cache.SharedIndexInformer                  = (*capturingInformer)(nil)
)

type oneTime struct {
	info *genericapirequest.RequestInfo
	// resource replaces the key in info.
	resource schema.GroupResource
	crd      *apiextensionsv1.CustomResourceDefinition
}

// issue sets a one-time key for crd in info, which must be private to the request and will contain resource
// after the key is used.
func (l *syntheticLister) issue(info *genericapirequest.RequestInfo, resource schema.GroupResource, crd *apiextensionsv1.CustomResourceDefinition) (void func()) {
	t := &oneTime{info: info, resource: resource, crd: crd}
	info.APIGroup = strconv.FormatUint(l.last.Add(1), 36)
	key := info.Resource + "." + info.APIGroup
	l.issued.Store(key, t)
	return func() { l.issued.Delete(key) }
}

func (l *syntheticLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if v, ok := l.issued.LoadAndDelete(name); ok {
		t, _ := v.(*oneTime)
		t.info.APIGroup, t.info.Resource = t.resource.Group, t.resource.Resource
		return t.crd, nil
	}
	if s, ok := l.table.ByName(name); ok {
		l.building.Store(s)
		l.servingInfos.Inc()
		return s.CRD(), nil
	}
	return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), name)
}

// List implements the lister: the definitions with serving info to keep.
func (l *syntheticLister) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return l.table.Definitions(), nil
}

func (l *syntheticLister) Informer() cache.SharedIndexInformer { return &l.informer }

func (l *syntheticLister) Lister() listers.CustomResourceDefinitionLister { return l }

// capturingInformer captures the event handler of the upstream handler.
type capturingInformer struct {
	cache.SharedIndexInformer // methods that the handler does not call
	handler                   cache.ResourceEventHandler
}

func (i *capturingInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handler = h
	return nil, nil
}
