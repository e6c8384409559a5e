package customresource

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

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
)

// upstream is the upstream handler of custom resources.
type upstream interface {
	http.Handler
	GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
}

// Server serves custom resources of all logical clusters. Make it with New,
// put it into the handler chain with Wrap, register the definitions' own API
// with InstallCRDs, and Run it.
type Server struct {
	releaseAfter time.Duration
	replicas     bool

	table   *definitions.Table
	lister  *syntheticLister
	system  *definitions.System
	sources *definitions.Sources
	// crds is nil if the server has no CustomResourceDefinition objects.
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

// instances gives access to the custom resources of a synthetic definition, as
// the upstream handler stores them.
func (s *Server) instances(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	return s.upstream.GetCustomResourceListerCollectionDeleter(crd)
}

// AddSource has a source of definitions asked, after system definitions and before
// CustomResourceDefinition objects, until remove is called. It may come and go
// while the server runs: watches of what was served by another source before end,
// and definitions get names that it gives back.
func (s *Server) AddSource(source definitions.Source) (remove func()) {
	return s.sources.Add(source)
}

// Definitions are the CustomResourceDefinition objects for the controller that
// cleans up after them; nil if the server has none.
func (s *Server) Definitions() *definitions.Managed {
	if s.crds == nil {
		return nil
	}
	return definitions.NewManaged(s.crds, s.stores.Empty)
}

// InstallCRDs registers apiextensions.k8s.io/v1 with a generic API server.
func (s *Server) InstallCRDs(server *genericapiserver.GenericAPIServer) error {
	if s.crds == nil {
		return errors.New("customresource: this server has system definitions only, there is nothing to install")
	}
	return s.crds.Install(server)
}

// maxPlurals bounds what a server remembers of the resources of kinds.
const maxPlurals = 4096

// plurals are the resources that kinds were found to be of, in any logical cluster: nearly
// all agree, and whoever asks looks whether it is so.
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

// writeError answers with a Status.
func writeError(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, err error) {
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	responsewriters.ErrorNegotiated(err, apiextensionsserver.Codecs, gv, w, r)
}
