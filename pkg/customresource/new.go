package customresource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/customresource/patterns"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	defaultRequestTimeout = time.Minute
	defaultReleaseAfter   = 30 * time.Second
	// documentsAfter is a multiple of ReleaseAfter: documents are kept longer than serving info, because
	// clients request them rarely.
	documentsAfter = 20
	// maxPlurals limits the kinds of which resources are cached.
	maxPlurals = 4096
)

// Config configures a Server.
type Config struct {
	// Storage returns the multi-tenant storage options for a codec, e.g. (*storage.Backend).RESTOptionsGetter.
	Storage func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter
	// Unreadable records the objects that cannot be read with their definition.
	Unreadable *unreadable.Record
	// System are definitions that are served in every logical cluster, and to wildcard requests with full
	// content and without an identity.
	System []*apiextensionsv1.CustomResourceDefinition
	// SystemIdentity returns the identity, i.e. another name, that wildcards and virtual workspaces may use for the
	// objects of a resource of System, or "". It is optional.
	SystemIdentity func(ctx context.Context, resource schema.GroupResource) (string, error)
	// SystemBound reports for each request whether a logical cluster has a resource of System only if an added source
	// serves it there. It is optional.
	SystemBound func(cluster logicalcluster.Name, resource schema.GroupResource) bool
	// SystemOnly disables CustomResourceDefinitions, e.g. for a server of replicas with definitions returned by Opaque.
	SystemOnly bool
	// Replicas preserves the metadata, including UID, generation and managed fields, of objects with the
	// annotation kcp.io/shard. Generations are not incremented, and deletions ignore finalizers.
	Replicas bool
	// Admission admits writes and annotates dry runs; if it is nil, dry runs are only annotated.
	Admission admission.Interface
	// Authorizer authorizes creation by update; nil allows everything.
	Authorizer authorizer.UnconditionalAuthorizer

	// RequestTimeout limits how long requests may use removed serving info.
	RequestTimeout time.Duration
	// ReleaseAfter is how long unused serving info is kept.
	ReleaseAfter time.Duration

	// Webhooks calls conversion webhooks; nil allows only public addresses.
	Webhooks *webhooktransport.Tenants
	// WebhookCalls is versions.Config.Calls.
	WebhookCalls int
	// Convert are functions that replace the conversions of System. Admission must reject objects for which they fail.
	Convert map[schema.GroupResource]definitions.Convert

	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
}

// NewCustomResourceServer creates a server. Until Run has read the definitions, requests read them from storage.
func NewCustomResourceServer(cfg Config) (*Server, error) {
	if cfg.Storage == nil {
		return nil, errors.New("customresource: no storage is configured")
	}
	setDefaults(&cfg)
	s := &Server{
		releaseAfter: cfg.ReleaseAfter,
		replicas:     cfg.Replicas,
		table:        definitions.NewTable(),
		builtIns:     &documents.BuiltIns{},
		plurals:      lru.New(maxPlurals),
		patterns:     patterns.NewBound(patterns.DefaultLimit, cfg.Metrics),
	}
	s.hooks = versions.NewHooks(s.table.Converts)
	s.lister = &syntheticLister{table: s.table, servingInfos: instruments.NewCounter(cfg.Metrics, "shardplane_custom_resources_serving_infos_total",
		"Serving infos that were created. The serving info of a schema is kept while the schema is used.")}
	var err error
	if s.system, err = definitions.NewSystem(s.table, cfg.System, cfg.Convert, cfg.SystemIdentity, cfg.SystemBound); err != nil {
		return nil, err
	}
	s.stores = versions.NewVersionStores(versions.Config{
		Calls:    cfg.WebhookCalls,
		Storage:  cfg.Storage,
		Building: s.lister.building.Load,
		Instances: func(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
			return s.upstream.GetCustomResourceListerCollectionDeleter(crd)
		},
		MetricName: s.metricName,
		Replicas:   cfg.Replicas,
		Unreadable: cfg.Unreadable,
	})
	s.sources = definitions.NewSources(s.system)
	if !cfg.SystemOnly {
		s.crds, err = definitions.NewDefinitionStorage(definitions.Config{
			Storage: cfg.Storage, Unreadable: cfg.Unreadable, Table: s.table, Sources: s.sources, BuiltInNames: s.builtIns.Names,
		})
		if err != nil {
			return nil, err
		}
	}
	s.streams = &streams{resolve: s.sources.Resolve, all: map[schema.GroupResource]map[request.Cluster]sets.Set[*stream]{}}
	s.sources.Subscribe(s.streams.changed)
	s.documents = documents.NewDocuments(s.sources, s.builtIns, cfg.Metrics)

	if err := s.newUpstream(cfg); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) newUpstream(cfg Config) error {
	upstream, err := apiextensionsserver.NewCustomResourceDefinitionHandler(
		nil, nil, // it receives only resource requests
		s.lister,
		http.HandlerFunc(s.serveNext),
		s.stores,
		coreAdmission{next: cfg.Admission},
		nil, // definitions are already established
		webhook.NewDefaultServiceResolver(),
		s.hooks.Resolver(cfg.Webhooks.Resolver),
		1,
		cfg.Authorizer,
		cfg.RequestTimeout,
		minWatchTimeout,
		map[string]*spec.Schema{}, // each definition's own document contains the types of its metadata
		0,                         // a filter limits the bodies
	)
	if err != nil {
		return fmt.Errorf("making the custom resource handler: %w", err)
	}
	s.upstream, s.admission = upstream, cfg.Admission
	return nil
}

func setDefaults(cfg *Config) {
	cfg.Admission = cmp.Or[admission.Interface](cfg.Admission, storage.NewDryRunAdmission())
	cfg.Authorizer = cmp.Or[authorizer.UnconditionalAuthorizer](cfg.Authorizer, authorizerfactory.NewAlwaysAllowAuthorizer())
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, defaultRequestTimeout)
	cfg.ReleaseAfter = cmp.Or(cfg.ReleaseAfter, defaultReleaseAfter)
	cfg.Webhooks = cmp.Or(cfg.Webhooks, &webhooktransport.Tenants{})
}

// Run watches the definitions until ctx ends. It then closes the storage of custom resources; the server
// cannot be run again.
func (s *Server) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer s.stores.Close()
	defer workers.Wait()
	workers.Go(func() { s.stores.Count(ctx) })
	if s.crds != nil {
		workers.Go(func() { s.crds.Index().Run(ctx) })
	}
	s.sweep(ctx)
	s.hooks.Stop()
	return nil
}

// sweep releases the serving info of unused schemas.
func (s *Server) sweep(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		now := time.Now()
		s.stores.EvictIdle()
		s.documents.Expire(now.Add(-documentsAfter * s.releaseAfter))
		if s.table.Sweep(now.Add(-s.releaseAfter)) > 0 {
			s.lister.informer.handler.OnDelete(nil) // removes the serving info of definitions that List no longer returns
		}
	}, max(s.releaseAfter/2, time.Millisecond))
}

// HasSynced reports whether all definitions have been read.
func (s *Server) HasSynced() bool {
	return s.crds == nil || s.crds.Index().HasSynced()
}
