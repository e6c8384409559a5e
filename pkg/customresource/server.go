package customresource

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apiextensionshelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

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

	patterns     interface{ Trim() }
	upstream     upstream
	admission    admission.Interface
	maxBodyBytes int64

	builtIns  *documents.BuiltIns
	documents *documents.Documents
	plurals   plurals
}

// AddSource adds a source of definitions between system definitions and CustomResourceDefinition objects,
// until remove is called. Watches of resources that another source served before end, and definitions get
// names that the source releases.
func (s *Server) AddSource(source definitions.Source) (remove func()) {
	return s.sources.Add(source)
}

// Definitions returns the CustomResourceDefinition objects for their controller, or nil if there are none.
func (s *Server) Definitions() *definitions.Managed {
	if s.crds == nil {
		return nil
	}
	return definitions.NewManaged(s.crds, s.stores.Empty)
}

// InstallCRDs registers apiextensions.k8s.io/v1 with a generic API server.
func (s *Server) InstallCRDs(server *genericapiserver.GenericAPIServer) error {
	if s.crds == nil {
		return errors.New("customresource: this server has only system definitions and does not serve CustomResourceDefinitions")
	}
	return s.crds.Install(server)
}

const maxPlurals = 4096

// plurals caches the resources of kinds in any logical cluster, up to maxPlurals kinds. Most logical clusters
// agree, and callers verify the result.
type plurals struct {
	mu sync.Mutex
	of map[schema.GroupKind][]string
}

func (p *plurals) get(kind schema.GroupKind) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[kind]
}

func (p *plurals) add(kind schema.GroupKind, plural string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of[kind]
	if slices.Contains(known, plural) {
		return
	}
	if p.of == nil || len(p.of) >= maxPlurals {
		p.of = map[schema.GroupKind][]string{}
	}
	p.of[kind] = append(slices.Clip(known[max(0, len(known)-3):]), plural)
}

func writeError(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, err error) {
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	responsewriters.ErrorNegotiated(err, apiextensionsserver.Codecs, gv, w, r)
}

// metricName returns the name of a resource in metrics. All resources that are not system definitions share
// one name, because tenants choose their names and series are never removed.
func (s *Server) metricName(resource schema.GroupResource) schema.GroupResource {
	if s.system.Has(resource) {
		return resource
	}
	return multitenant.Unnamed
}

// nameFor returns the resource name for the upstream handler: the one in metrics, or the real one if the
// handler only returns an error with it.
func (s *Server) nameFor(info *genericapirequest.RequestInfo, crd *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if !counted(info, crd) {
		return resource
	}
	return s.metricName(resource)
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
	first := *info
	defer s.lister.issue(&first, s.nameFor(info, crd), crd)()
	ctx := &countedContext{Context: genericapirequest.WithRequestInfo(r.Context(), info), info: info, first: &first}
	s.upstream.ServeHTTP(w, r.WithContext(ctx)) //nolint:contextcheck // it inherits the request's
}
