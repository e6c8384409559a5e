package customresource

import (
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/customresource/patterns"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	defaultRequestTimeout    = time.Minute
	defaultMinRequestTimeout = 30 * time.Minute
	defaultReleaseAfter      = 30 * time.Second
	// documentsAfter is how many times longer than serving info documents are
	// kept: clients ask for them now and then.
	documentsAfter = 20
)

// Config is what a Server is made of.
type Config struct {
	// Storage gives the multi-tenant storage options for codecs of our choice;
	// (*storage.Backend).RESTOptionsGetter is one.
	Storage func(codecFor func(schema.GroupResource) (runtime.Codec, error)) generic.RESTOptionsGetter
	// Unreadable records the objects that cannot be read with their definition; nil for a record of its own.
	Unreadable *unreadable.Record
	// System are definitions that are served in every logical cluster, and to
	// the wildcard with full content and without an identity.
	System []*apiextensionsv1.CustomResourceDefinition
	// SystemIdentity returns the identity by which the wildcard, and views, know a resource
	// of System as well, or "" if there is none: it is another name of the same objects.
	// Nil: none has any.
	SystemIdentity func(ctx context.Context, resource schema.GroupResource) (string, error)
	// SystemBound reports whether a logical cluster has a resource of System only if a
	// source that was added serves it there. It is asked for each request. Nil: none has.
	SystemBound func(cluster logicalcluster.Name, resource schema.GroupResource) bool
	// SystemOnly makes System the whole set: no CustomResourceDefinition
	// objects are stored or served. It is what a server of replicas wants,
	// with definitions that went through Opaque.
	SystemOnly bool
	// Replicas has objects that name the shard of another one in the annotation
	// kcp.io/shard keep the metadata that they come with, UID, generation and managers of
	// fields included. No generation is counted, and what is deleted is gone at once,
	// whatever its finalizers.
	Replicas bool
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

	// Webhooks call conversion webhooks; at public addresses only if nil.
	Webhooks *webhooktransport.Tenants
	// WebhookCalls is how many conversion webhooks are called at a time for one
	// logical cluster; 0 is webhooktransport.DefaultCallsPerCluster.
	WebhookCalls int
	// Convert are functions that take the place of conversion webhooks, by the host in
	// their URLs. They are for definitions in System; a tenant's definition that has
	// the host has no more than their answers.
	Convert map[string]versions.Convert

	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
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
		replicas:     cfg.Replicas,
		table:        definitions.NewTable(),
		builtIns:     &documents.BuiltIns{},
		patterns:     patterns.NewBound(patterns.DefaultLimit, cfg.Metrics),
	}
	s.hooks = versions.NewHooks(cfg.Convert, s.table.Converts)
	s.lister = newSyntheticLister(s.table, newServingInfos(cfg.Metrics))
	var err error
	if s.system, err = definitions.NewSystem(s.table, cfg.System, cfg.SystemIdentity, cfg.SystemBound); err != nil {
		return nil, err
	}
	s.stores = versions.New(versions.Config{
		Calls:      cfg.WebhookCalls,
		Hooks:      s.hooks,
		Storage:    cfg.Storage,
		Building:   s.lister.building.Load,
		Instances:  s.instances,
		MetricName: s.metricName,
		Replicas:   cfg.Replicas,
		Unreadable: cfg.Unreadable,
	})
	s.sources = definitions.NewSources(s.system)
	if !cfg.SystemOnly {
		s.crds, err = definitions.New(definitions.Config{
			Storage: cfg.Storage, Unreadable: cfg.Unreadable, Table: s.table, Sources: s.sources, BuiltInNames: s.builtIns.Names,
		})
		if err != nil {
			return nil, err
		}
	}
	s.streams = newStreams(s.sources.Resolve)
	s.sources.Subscribe(s.streams.changed)
	s.documents = documents.New(s.sources, s.builtIns, cfg.Metrics)

	if err := s.newUpstream(cfg); err != nil {
		return nil, err
	}
	return s, nil
}

// newUpstream makes the one upstream handler.
func (s *Server) newUpstream(cfg Config) error {
	upstream, err := apiextensionsserver.NewCustomResourceDefinitionHandler(
		nil, nil, // only resource requests reach it
		s.lister,
		http.HandlerFunc(s.serveNext),
		s.stores,
		coreAdmission{next: cfg.Admission},
		nil, // nothing is ever to be established
		webhook.NewDefaultServiceResolver(),
		s.hooks.Resolver(cfg.Webhooks.Resolver),
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
	s.upstream, s.admission, s.maxBodyBytes = upstream, cfg.Admission, cfg.MaxRequestBodyBytes
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
	if cfg.Webhooks == nil {
		cfg.Webhooks = &webhooktransport.Tenants{}
	}
}

// Run follows the definitions until ctx ends. It then closes all storage of
// custom resources; the server cannot be run again.
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

// sweep releases the serving info of schemas that nobody uses any more.
func (s *Server) sweep(ctx context.Context) {
	ticker := time.NewTicker(max(s.releaseAfter/2, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.stores.EvictIdle()
			s.documents.Expire(now.Add(-documentsAfter * s.releaseAfter))
			if s.table.Sweep(now.Add(-s.releaseAfter)) > 0 {
				s.lister.removeDead()
			}
		}
	}
}

// HasSynced reports whether the server knows all definitions.
func (s *Server) HasSynced() bool {
	return s.crds == nil || s.crds.Index().HasSynced()
}
