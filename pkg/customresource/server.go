package customresource

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	defaultRequestTimeout    = time.Minute
	defaultMinRequestTimeout = 30 * time.Minute
	defaultReleaseAfter      = 30 * time.Second
	finalizerWorkers         = 2
	// documentsAfter is how many times longer than serving info documents are
	// kept: clients ask for them now and then.
	documentsAfter = 20
)

// Config is what a Server is made of.
type Config struct {
	// Storage gives the multi-tenant storage options for codecs of our choice;
	// (*storage.Backend).RESTOptionsGetter is one.
	Storage func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter
	// System are definitions that are served in every logical cluster, and to
	// the wildcard with full content and without an identity.
	System []*apiextensionsv1.CustomResourceDefinition
	// SystemOnly makes System the whole set: no CustomResourceDefinition
	// objects are stored or served. It is what a server of replicas wants,
	// with definitions that went through Opaque.
	SystemOnly bool
	// Sources are asked after System and before CustomResourceDefinition
	// objects; bound APIs come from here.
	Sources []Source

	// Admission admits writes of custom resources, and annotates those of dry
	// runs; if nil, it does the latter only.
	Admission admission.Interface
	// Authorizer decides about creation by update; everything is allowed if nil.
	Authorizer authorizer.UnconditionalAuthorizer

	// RequestTimeout bounds how long requests may keep removed serving info.
	RequestTimeout time.Duration
	// MinRequestTimeout is the shortest time after which a watch ends.
	MinRequestTimeout time.Duration
	// MaxRequestBodyBytes bounds bodies of writes; 0 is no bound.
	MaxRequestBodyBytes int64
	// ReleaseAfter is how long the serving info of a schema outlives its last
	// use.
	ReleaseAfter time.Duration

	// ServiceResolver and AuthResolver reach conversion webhooks.
	ServiceResolver webhook.ServiceResolver
	AuthResolver    webhook.AuthenticationInfoResolverWrapper
}

// instances gives access to the custom resources of a definition, as the
// upstream handler stores them.
type instances interface {
	GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
}

// Server serves custom resources of all logical clusters. Make it with New,
// put it into the handler chain with Wrap, register the definitions' own API
// with InstallCRDs, and Run it.
type Server struct {
	releaseAfter time.Duration

	table  *schemaTable
	desk   *desk
	source Source
	// objects is nil if the server has no CustomResourceDefinition objects.
	objects *objectSource
	crds    *crdStorage
	raws    *rawStores
	streams *streams
	hooks   *hooks
	named   named

	upstream  http.Handler
	instances instances

	builtIns  builtIns
	documents *documents
}

// New makes a server. Nothing runs before Run, but requests may come before
// it: they read definitions from storage until then.
func New(cfg Config) (*Server, error) {
	if cfg.Storage == nil {
		return nil, errors.New("customresource: no storage is configured")
	}
	setDefaults(&cfg)
	s := &Server{
		releaseAfter: cfg.ReleaseAfter,
		table:        newSchemaTable(),
		streams:      newStreams(),
		hooks:        newHooks(),
	}
	s.desk = newDesk(s.table)
	system, err := newSystemSource(s.table, cfg.System)
	if err != nil {
		return nil, err
	}
	s.named = named(system.byResource)
	s.raws = newRawStores(cfg.Storage(rawCodecFor), s.desk, s.named)
	sources := append(composite{system}, cfg.Sources...)
	if !cfg.SystemOnly {
		s.crds, err = newCRDStorage(cfg.Storage, s.table, sources, &s.builtIns)
		if err != nil {
			return nil, err
		}
		s.objects = s.crds.objects
		sources = append(sources, s.objects)
	}
	s.source = sources
	s.source.Subscribe(s.streams.changed)
	s.documents = newDocuments(s.source, &s.builtIns)

	if err := s.newUpstream(cfg); err != nil {
		return nil, err
	}
	return s, nil
}

// newUpstream makes the one upstream handler.
func (s *Server) newUpstream(cfg Config) error {
	upstream, err := apiextensionsserver.NewCustomResourceDefinitionHandler(
		nil, nil, // only resource requests reach it
		s.desk,
		http.HandlerFunc(s.serveNext),
		s.raws,
		cfg.Admission,
		nil, // nothing is ever to be established
		cfg.ServiceResolver,
		s.hooks.resolver(cfg.AuthResolver),
		1,
		cfg.Authorizer,
		cfg.RequestTimeout,
		cfg.MinRequestTimeout,
		map[string]*spec.Schema{}, // each definition's own document has the types of its metadata
		cfg.MaxRequestBodyBytes,
	)
	if err != nil {
		return fmt.Errorf("making the custom resource handler: %w", err)
	}
	s.upstream = upstream
	s.instances = upstream
	return nil
}

func setDefaults(cfg *Config) {
	if cfg.Admission == nil {
		cfg.Admission = storage.NewDryRunAdmission()
	}
	if cfg.Authorizer == nil {
		cfg.Authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		})
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = defaultRequestTimeout
	}
	if cfg.MinRequestTimeout == 0 {
		cfg.MinRequestTimeout = defaultMinRequestTimeout
	}
	if cfg.ReleaseAfter == 0 {
		cfg.ReleaseAfter = defaultReleaseAfter
	}
	if cfg.ServiceResolver == nil {
		cfg.ServiceResolver = webhook.NewDefaultServiceResolver()
	}
	if cfg.AuthResolver == nil {
		cfg.AuthResolver = webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, nil, nil)
	}
}

// Run follows the definitions and cleans up after them until ctx ends. It then
// closes all storage of custom resources; the server cannot be run again.
func (s *Server) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer s.raws.close()
	defer workers.Wait()
	workers.Go(func() { s.raws.count(ctx) })
	if s.objects != nil {
		cleaner := newCleaner(s)
		workers.Go(func() { s.objects.run(ctx) })
		workers.Go(func() { cleaner.run(ctx, finalizerWorkers) })
	}
	s.sweep(ctx)
	s.hooks.stop()
	return nil
}

// sweep releases the serving info of schemas that nobody uses any more.
func (s *Server) sweep(ctx context.Context) {
	ticker := time.NewTicker(max(s.releaseAfter/2, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.raws.forget()
			s.documents.forget(now.Add(-documentsAfter * s.releaseAfter))
			if s.table.sweep(now.Add(-s.releaseAfter)) > 0 {
				s.desk.removeDead()
			}
		}
	}
}

// HasSynced says whether the server knows all definitions.
func (s *Server) HasSynced() bool {
	return s.objects == nil || s.objects.hasSynced()
}
