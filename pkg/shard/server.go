package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/admission"
	"github.com/shardplane/shardplane/pkg/admission/claims"
	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/cachedresources"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/versions"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/serving/metriclabels"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/encryption"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
	"github.com/shardplane/shardplane/pkg/virtual/apiexport"
	"github.com/shardplane/shardplane/pkg/virtual/replication"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// etcdStartTimeout bounds the start of the embedded etcd, recovery of its log
// included, or the first contact with an external one.
const etcdStartTimeout = 2 * time.Minute

// Server is a shard that is ready to run. Either Run it or Close it.
type Server struct {
	options CompletedOptions
	metrics *prometheus.Registry

	listener        *serving.Listener
	etcd            *etcd.Handle
	encryption      *encryption.Providers
	backend         *storage.Backend
	unreadable      *unreadable.Record
	starts          *etcd.Starts
	dataID          string
	usage           *usage.Counter
	subtrees        *subtrees.Sums
	generic         *genericapiserver.GenericAPIServer
	customResources *customresource.Server
	bindings        *bindings.Index
	cached          *cachedresources.Index
	replicas        *replication.Replicas
	views           views
	exportViews     *apiexport.VirtualWorkspaces
	admission       *admission.Admission
	sources         controllers.Sources
	informers       *controllers.Informers
	local           *local
	// watches are those of users, which end where a logical cluster is switched off.
	watches        serving.OpenWatches
	rules          *rbac.Authorizer
	reviews        *reviews
	authentication *authn.Authentication
	peers          *peers.Book
	remoteParams   *remoteparams.Cache
	rootIdentities rootIdentities
	others         others
	// bootstrapped is set when everything that a shard starts with exists,
	// inForce when decisions go by its roles and bindings.
	bootstrapped, inForce atomic.Bool
	group                 *lifecycle.Group

	// stopServing ends watches and the listener; it is called once everything
	// that uses the API has stopped.
	serving     context.Context //nolint:containedctx // the life of the listener, which outlives the controllers'
	stopServing context.CancelFunc
}

// New opens the data and the listener and assembles the server. ctx bounds the
// opening only. What fails half way is undone.
func New(ctx context.Context, o CompletedOptions) (s *Server, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s = &Server{options: o, metrics: prometheus.NewRegistry(), group: lifecycle.New("part")}
	s.serving, s.stopServing = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()
	// The listener first: a port in use must not cost a start of etcd.
	if s.listener, err = o.Serving.Listen(s.metrics); err != nil {
		return s, err
	}
	s.group.Opened(s.listener.Close)
	if err := s.openStorage(ctx); err != nil {
		return s, err
	}
	if err := s.assembleAPI(); err != nil { //nolint:contextcheck // what it makes outlives the start
		return s, err
	}
	err = s.addParts()
	return s, err
}

// Close releases what New opened, in reverse order. Run does so itself.
func (s *Server) Close() {
	s.stopServing()
	s.group.Close()
}

func (s *Server) openStorage(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, etcdStartTimeout)
	defer cancel()
	var err error
	if s.etcd, err = s.options.Etcd.Open(ctx); err != nil {
		return err
	}
	s.group.Opened(s.etcd.Stop)
	if s.encryption, err = s.options.Encryption.Open(ctx, s.options.Name); err != nil {
		return err
	}
	s.group.Opened(s.encryption.Close)
	if err := s.etcd.Claim(ctx, etcd.Identity{Kind: etcd.KindShard, Name: s.options.Name}); err != nil {
		return err
	}
	if s.starts, err = s.etcd.Start(ctx); err != nil {
		return err
	}
	if s.dataID, err = s.etcd.DataID(ctx); err != nil {
		return err
	}
	named, err := metriclabels.Named()
	if err != nil {
		return err
	}
	s.unreadable = unreadable.NewRecord(s.metrics)
	s.backend, err = storage.NewBackend(storage.BackendConfig{ //nolint:contextcheck // it asks etcd with the context of the client, which outlives the start
		Client:             s.etcd.Client(),
		Prefix:             s.etcd.Prefix(),
		CompactionInterval: s.options.Etcd.CompactionInterval,
		Transformers:       s.encryption.Transformers(),
		Named:              named,

		Unreadable:              s.unreadable,
		EnableGarbageCollection: s.options.Garbage.Enabled,
		ClaimLabels: func(cluster logicalcluster.Name, resource schema.GroupResource, identity string) []storage.ClaimLabel {
			return s.bindings.ClaimLabels(cluster, resource, identity)
		},
	})
	if err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	s.group.Opened(s.backend.Close)
	s.usage = usage.New(s.etcd.Client().Client, s.etcd.Prefix(), storage.ResourcePrefix(corev1.Resource("events")), replicatedKinds()...)
	if s.options.Etcd.CompactionInterval > 0 {
		s.usage.CompactEarly()
	}
	return nil
}

func (s *Server) assembleAPI() error {
	c, err := serving.NewConfig(&s.options.Serving, s.listener, serving.API{
		Title:       "Shardplane",
		Scheme:      registry.WireScheme(apiextensionsserver.Scheme),
		Codecs:      registry.Codecs,
		Definitions: openapi.GetOpenAPIDefinitions,
	})
	if err != nil {
		return err
	}
	if s.sources, err = s.openSources(c.LoopbackClientConfig); err != nil {
		return err
	}
	s.informers = controllers.NewInformers(s.sources)
	access, err := s.otherShards()
	if err != nil {
		return err
	}
	s.peers = peers.New(peers.Config{Self: s.options.Name, Local: s.sources.Local, Shards: s.informers.Shards, Access: access})
	s.remoteParams = remoteparams.New(remoteparams.FromPeers(s.peers.Named))
	if s.authentication, err = authn.New(s.options.Authentication, authn.Sources{
		Accounts: newAccounts(s.sources.Local, s.informers, s.peers), Workspace: s.knownIn, Report: s.tellOfIssuer, Metrics: s.metrics,
	}); err != nil {
		return err
	}
	serving.Authenticate(c, s.authentication)
	s.local = newLocal(s.options.Name, s.sources.Local, s.informers, &s.watches)
	if s.bindings, err = s.newBindings(); err != nil {
		return err
	}
	s.replicas = s.newReplicas()
	s.subtrees = newSubtrees(s.options.Name, s.usage, s.informers)
	decides, err := s.authorizer()
	if err != nil {
		return err
	}
	c.Authorization.Authorizer = authz.WithinVirtualWorkspaces(decides)
	webhooks, err := webhooktransport.NewTenants(s.options.Webhooks)
	if err != nil {
		return err
	}
	if s.admission, err = s.newAdmission(decides, webhooks); err != nil {
		return err
	}
	c.AdmissionControl = s.admission.Interface()
	if err := s.assembleCustomResources(c.Authorization.Authorizer, webhooks); err != nil {
		return err
	}
	serving.AllowSnapshots(c)
	serving.SetChain(c, s.chain)
	c.RESTOptionsGetter = s.backend.RESTOptionsGetter(registry.StorageCodec)
	c.ReadyzChecks = append(c.ReadyzChecks, s.readyChecks()...)
	c.ReadyzChecks = append(c.ReadyzChecks, s.encryption.HealthChecks()...)
	c.LivezChecks = append(c.LivezChecks, healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Health(r.Context()) }))

	if s.generic, err = c.Complete(nil).New("shardplane-shard", genericapiserver.NewEmptyDelegate()); err != nil {
		return fmt.Errorf("assembling the API server: %w", err)
	}
	serving.InstallSnapshots(s.generic, s.etcd, registry.Codecs)
	serving.InstallMetrics(s.generic, s.metrics)
	may := s.access(decides)
	may.Identity = s.identity()
	if err := registry.Install(s.generic, c.RESTOptionsGetter, may); err != nil {
		return err
	}
	return s.customResources.InstallCRDs(s.generic)
}

func (s *Server) newAdmission(a authorizer.Authorizer, webhooks *webhooktransport.Tenants) (*admission.Admission, error) {
	return admission.New(admission.Config{
		Clients:        s.sources.Local,
		Namespaces:     s.informers.Namespaces,
		ResourceQuotas: s.informers.ResourceQuotas,
		Hooks:          admission.Hooks(s.informers.Hooks),
		RemoteParams:   s.remoteParams,
		Local:          s.local.has,
		Authorizer:     a,
		Webhooks:       webhooks,
		WebhookCalls:   s.options.Serving.Limits.Max(ledger.WebhookCallsPerCluster),
		WorkspaceTypes: s.workspaceTypes(),
		FindCluster:    s.local.find,
		APIKinds:       s.apiKinds(),
		Claims: claims.Config{
			Allows: s.exportViews.Allows, Through: authz.WithinVirtualWorkspaces(a).Authorize, Bound: s.providerPermits,
		},
		BuiltIn:           s.builtIn,
		NoCachedResources: !s.options.Serving.FeatureGates.Enabled(features.CachedResources),
		OwnVersion:        s.ownVersion,
		Limits: limits.Config{
			Options: s.options.Limits, Usage: s.usage, Subtrees: s.subtrees.Of, LogicalCluster: s.local.get,
			Homes: s.options.Homes.Limits, Owners: newOwners(s.usage, s.informers, s.local), Metrics: s.metrics,
		},
	})
}

func (s *Server) assembleCustomResources(a authorizer.Authorizer, webhooks *webhooktransport.Tenants) error {
	system, err := config.SystemCRDs()
	if err != nil {
		return fmt.Errorf("reading the definitions of the system's kinds: %w", err)
	}
	s.customResources, err = customresource.New(customresource.Config{
		Storage:    s.backend.RESTOptionsGetter,
		Unreadable: s.unreadable,
		System:     system,

		SystemIdentity: s.systemIdentity,
		SystemBound: func(cluster logicalcluster.Name, resource schema.GroupResource) bool {
			return config.RootExportOf(resource) != "" && s.bindsSystem(cluster)
		},
		Admission:  s.admission.Interface(),
		Authorizer: a,
		Webhooks:   webhooks, WebhookCalls: s.options.Serving.Limits.Max(ledger.WebhookCallsPerCluster),
		Convert: map[string]versions.Convert{config.ConversionHost: apis.Convert},
		Metrics: s.metrics,
	})
	if err != nil {
		return fmt.Errorf("custom resources: %w", err)
	}
	s.customResources.AddSource(s.bindings)
	s.cached = cachedresources.New(s.bindings.Resolve)
	s.customResources.AddSource(s.cached)
	return nil
}

func (s *Server) readyChecks() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Ready(r.Context()) }),
		healthz.NamedCheck("definitions", func(*http.Request) error {
			return synced(s.customResources.HasSynced(), "not all CustomResourceDefinitions are known yet")
		}),
		healthz.NamedCheck("bindings", func(*http.Request) error {
			return synced(s.bindings.HasSynced(), "not all APIBindings are known yet")
		}),
		healthz.NamedCheck("logical-clusters", func(*http.Request) error {
			return synced(s.local.hasSynced(), "not all logical clusters are known yet")
		}),
		healthz.NamedCheck("rbac", func(*http.Request) error {
			return synced(s.rules.HasSynced(), "not all roles and bindings are known yet")
		}),
		healthz.NamedCheck("bootstrap", func(*http.Request) error {
			return synced(s.bootstrapped.Load(), "the objects that every shard starts with do not all exist yet")
		}),
		// Without this, administrators could be refused in the first moment.
		healthz.NamedCheck("bootstrap-rbac", func(*http.Request) error {
			if s.bootstrapped.Load() && s.rules.CaughtUp(tenancy.AdminCluster) && s.rules.CaughtUp(core.RootCluster) {
				s.inForce.Store(true) // later writes do not make the shard unready
			}
			return synced(s.inForce.Load(), "the roles and bindings that every shard starts with are not all in force yet")
		}),
	}
}

func synced(ok bool, otherwise string) error {
	if ok {
		return nil
	}
	return errors.New(otherwise)
}

// Loopback returns the configuration of a client that is system:masters and
// lives as long as the server.
func (s *Server) Loopback() *rest.Config { return rest.CopyConfig(s.generic.LoopbackClientConfig) }

// Handler returns what answers requests, without the listener in front of it. It
// serves while Run runs.
func (s *Server) Handler() http.Handler { return s.generic.Handler }

// Run serves until ctx is done, or until a part of the server fails. It stops
// the parts in reverse order, closes everything that New opened, and returns when
// all of it has ended.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	logger := klog.FromContext(ctx).WithValues("shard", s.options.Name)
	ctx = reconcile.WithMetrics(klog.NewContext(ctx, logger), s.metrics)
	base, _ := s.options.urls(s.listener.URL)
	logger.Info("Shard starts", "address", s.generic.SecureServingInfo.Listener.Addr().String(), "url", base)
	if err := s.group.Run(ctx); err != nil {
		return fmt.Errorf("shard %s: %w", s.options.Name, err)
	}
	logger.Info("Shard has stopped")
	return nil
}
