package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	"github.com/shardplane/shardplane/pkg/cachedresources"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
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
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/virtual/apiexport"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// etcdStartTimeout limits the start of the embedded etcd with the recovery of its log, or the contact with another.
const etcdStartTimeout = 2 * time.Minute

// NewShard opens the data and the listener and assembles the server. ctx limits opening only.
func NewShard(ctx context.Context, o CompletedOptions) (_ *Server, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("shard", o.Name))
	b, err := newBase(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	data, err := b.openData(ctx)
	if err != nil {
		return nil, err
	}
	return data.newServer() //nolint:contextcheck // the components outlive the start
}

func (s *storedData) newServer() (*Server, error) {
	c, err := serving.NewConfig(s.serving, &s.options.Serving, s.listener, serving.API{
		Title:       "Shardplane",
		Scheme:      registry.WireScheme(apiextensionsserver.Scheme),
		Codecs:      registry.Codecs,
		Definitions: openapi.GetOpenAPIDefinitions,
	})
	if err != nil {
		return nil, err
	}
	installation, err := s.newInstallation(c.LoopbackClientConfig)
	if err != nil {
		return nil, err
	}
	bound, err := installation.newBoundResources()
	if err != nil {
		return nil, err
	}
	access, err := bound.newRequestAccess()
	if err != nil {
		return nil, err
	}
	objects, err := access.newObjectServers()
	if err != nil {
		return nil, err
	}
	server, err := objects.newServer(c)
	if err != nil {
		return nil, err
	}
	if err := server.addParts(); err != nil {
		return nil, err
	}
	return server, nil
}

// newBase opens the listener first, because a port in use should be reported before etcd is started.
func newBase(ctx context.Context, o CompletedOptions) (s *base, err error) {
	s = &base{options: o, metrics: prometheus.NewRegistry(), group: lifecycle.NewGroup("part")}
	if s.listener, err = o.Serving.Listen(s.metrics); err != nil {
		return nil, err
	}
	s.group.Opened(s.listener.Close)
	s.serving, s.stopServing = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

func (s *base) close() {
	s.stopServing()
	s.group.Close()
}

func (s *base) openData(ctx context.Context) (d *storedData, err error) {
	ctx, cancel := context.WithTimeout(ctx, etcdStartTimeout)
	defer cancel()
	d = &storedData{base: s, unreadable: unreadable.NewRecord(ctx, s.metrics)}
	if d.etcd, err = s.options.Etcd.Open(ctx); err != nil {
		return nil, err
	}
	s.group.Opened(d.etcd.Stop)
	if d.encryption, err = s.options.Encryption.Open(ctx, s.options.Name); err != nil {
		return nil, err
	}
	s.group.Opened(d.encryption.Close)
	if err := d.etcd.Claim(ctx, etcd.Identity{Kind: etcd.KindShard, Name: s.options.Name}); err != nil {
		return nil, err
	}
	if d.starts, err = d.etcd.Start(ctx); err != nil {
		return nil, err
	}
	if d.dataID, err = d.etcd.DataID(ctx); err != nil {
		return nil, err
	}
	d.usage = usage.NewUsageMeter(d.etcd.Client().Client, d.etcd.Prefix(), storage.ResourcePrefix(corev1.Resource("events")), replicatedKinds()...)
	if s.options.Etcd.CompactionInterval > 0 {
		d.usage.CompactEarly()
	}
	return d, nil
}

func (s *storedData) newInstallation(loopback *rest.Config) (*installation, error) {
	i := &installation{storedData: s, connections: &connections{}}
	if err := i.openSources(loopback); err != nil {
		return nil, err
	}
	i.informers = controllers.NewInformers(i.sources)
	access, err := s.otherShards()
	if err != nil {
		return nil, err
	}
	i.peers = peers.NewPeerBook(peers.Config{Self: s.options.Name, Local: i.sources.Local, Shards: i.informers.Shards, Access: access})
	i.remoteParams = remoteparams.NewParamCache(s.serving, remoteparams.FromPeers(i.peers.Named))
	i.local = newLocal(s.options.Name, i.sources.Local, i.informers)
	i.subtrees = newSubtrees(s.options.Name, s.usage, i.informers)
	index, others := rbac.NewIndex(), rbac.NewShards(i.informers.Registered)
	index.Follow(i.informers.RBAC)
	others.Follow(i.informers.RBAC)
	i.rules = rbac.NewRBACAuthorizer(rbac.Config{
		Index: index, Global: others, System: tenancy.AdminCluster, HasSynced: i.informers.RBAC.HasSynced, Local: i.local.has,
	})
	i.reviews = newReviews(i.rules, i.local.has, i.peers)
	return i, nil
}

func (s *installation) newBoundResources() (b *boundResources, err error) {
	b = &boundResources{installation: s, late: &lateServers{}}
	if b.bindings, err = s.newBindings(b.late); err != nil {
		return nil, err
	}
	b.replicas = s.newReplicas(b.bindings)
	return b, nil
}

func (s *boundResources) newRequestAccess() (a *requestAccess, err error) {
	a = &requestAccess{boundResources: s, exportVirtualWorkspaces: &apiexport.VirtualWorkspaces{
		Bindings: s.bindings, Rules: s.providersRules(), Inactive: s.local.inactive, ServeDocuments: s.late.ServeDocuments,
	}}
	a.virtualWorkspaces = s.newVirtualWorkspaces(a.exportVirtualWorkspaces)
	if a.authentication, err = authn.NewAuthentication(s.options.Authentication, authn.Sources{
		Accounts: s.newAccounts(), Workspace: s.workspaceOf, Report: s.recordIssuerFault, Metrics: s.metrics,
	}); err != nil {
		return nil, err
	}
	if a.rights, err = s.newAuthorizer(a.virtualWorkspaces); err != nil {
		return nil, err
	}
	a.authorizer = authz.WithinVirtualWorkspaces(a.rights)
	return a, nil
}

func (s *objectServers) newServer(c *genericapiserver.Config) (*Server, error) {
	server := &Server{objectServers: s}
	serving.Authenticate(c, s.authentication)
	c.Authorization.Authorizer = s.authorizer
	c.AdmissionControl = s.admission.Interface()
	c.RESTOptionsGetter = s.backend.RESTOptionsGetter(registry.StorageCodec)
	c.ReadyzChecks = append(c.ReadyzChecks, server.readyChecks()...)
	c.ReadyzChecks = append(c.ReadyzChecks, s.encryption.HealthChecks()...)
	c.LivezChecks = append(c.LivezChecks, healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Health(r.Context()) }))

	generic, err := serving.NewAPIServer("shardplane-shard", c, s.chain, s.etcd, s.metrics, registry.Codecs)
	if err != nil {
		return nil, err
	}
	server.generic = generic
	if err := registry.Install(generic, c.RESTOptionsGetter, s.access()); err != nil {
		return nil, err
	}
	return server, s.customResources.InstallCRDs(generic)
}

func (s *Server) readyChecks() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Ready(r.Context()) }),
		readyCheck("definitions", s.customResources.HasSynced, "not all CustomResourceDefinitions are loaded yet"),
		readyCheck("bindings", s.bindings.HasSynced, "not all APIBindings are loaded yet"),
		readyCheck("logical-clusters", s.local.hasSynced, "not all logical clusters are loaded yet"),
		readyCheck("rbac", s.rules.HasSynced, "not all roles and bindings are loaded yet"),
		readyCheck("bootstrap", s.bootstrapped.Load, "not all initial objects of the shard exist yet"),
		// Without this check, requests of administrators could be rejected at first.
		readyCheck("bootstrap-rbac", func() bool {
			if s.bootstrapped.Load() && s.rules.CaughtUp(tenancy.AdminCluster) && s.rules.CaughtUp(core.RootCluster) {
				s.rulesReady.Store(true) // later writes must not make the shard unready
			}
			return s.rulesReady.Load()
		}, "not all initial roles and bindings are in effect yet"),
	}
}

func readyCheck(name string, ready func() bool, otherwise string) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(*http.Request) error {
		if ready() {
			return nil
		}
		return errors.New(otherwise)
	})
}

// Loopback returns a client configuration of a system:masters user. It is valid as long as the server.
func (s *Server) Loopback() *rest.Config { return rest.CopyConfig(s.generic.LoopbackClientConfig) }

// Handler returns the handler of requests without the listener. It serves while Run is running.
func (s *Server) Handler() http.Handler { return s.generic.Handler }

// Close closes everything that New opened, in reverse order. Run calls it itself.
func (s *Server) Close() { s.close() }

// Run serves until ctx is done or a part fails. It then stops all parts in reverse order and closes the server.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	logger := klog.FromContext(ctx).WithValues("shard", s.options.Name)
	ctx = reconcile.WithMetrics(klog.NewContext(ctx, logger), s.metrics)
	url, _ := s.options.urls(s.listener.URL)
	logger.Info("Starting the shard", "address", s.generic.SecureServingInfo.Listener.Addr().String(), "url", url)
	if err := s.group.Run(ctx); err != nil {
		return fmt.Errorf("shard %s: %w", s.options.Name, err)
	}
	logger.Info("Stopped the shard")
	return nil
}

func (s *requestAccess) newObjectServers() (*objectServers, error) {
	o := &objectServers{requestAccess: s, cached: cachedresources.NewCachedResourceIndex(s.bindings.Resolve)}
	webhooks, err := webhooktransport.NewTenants(s.options.Webhooks)
	if err != nil {
		return nil, err
	}
	if o.admission, err = s.newAdmission(webhooks); err != nil {
		return nil, err
	}
	if o.backend, err = s.newBackend(); err != nil {
		return nil, err
	}
	if o.customResources, err = s.newCustomResources(o.backend, o.admission, webhooks); err != nil {
		return nil, err
	}
	o.customResources.AddSource(s.bindings)
	o.customResources.AddSource(o.cached)
	s.late.servers = o
	return o, nil
}

func (s *requestAccess) newAdmission(webhooks *webhooktransport.Tenants) (*admission.Admission, error) {
	return admission.NewChain(s.serving, admission.Config{
		Clients:        s.sources.Local,
		Namespaces:     s.informers.Namespaces,
		ResourceQuotas: s.informers.ResourceQuotas,
		Hooks:          admission.Hooks(s.informers.Hooks),
		RemoteParams:   s.remoteParams,
		Local:          s.local.has,
		Authorizer:     s.rights,
		Webhooks:       webhooks,
		WebhookCalls:   s.options.Serving.Limits.Max(ledger.WebhookCallsPerCluster),
		WorkspaceTypes: s.workspaceTypes(),
		FindCluster:    s.local.find,
		APIKinds:       s.apiKinds(),
		Claims: claims.Config{
			Allows: s.exportVirtualWorkspaces.Allows, Through: s.authorizer.Authorize, Bound: s.providerPermits,
		},
		BuiltIn:           s.late.builtIn,
		NoCachedResources: !s.options.Serving.FeatureGates.Enabled(features.CachedResources),
		OwnVersion:        s.ownVersion,
		Limits: limits.Config{
			Options: s.options.Limits, Usage: s.usage, Subtrees: s.subtrees.Of, LogicalCluster: s.local.get,
			Homes: s.options.Homes.Limits, Owners: newOwners(s.usage, s.informers, s.local), Metrics: s.metrics,
		},
	})
}

func (s *requestAccess) newBackend() (*storage.Backend, error) {
	named, err := metriclabels.Named()
	if err != nil {
		return nil, err
	}
	backend, err := storage.NewBackend(storage.BackendConfig{
		Client:                  s.etcd.Client(),
		Prefix:                  s.etcd.Prefix(),
		CompactionInterval:      s.options.Etcd.CompactionInterval,
		Transformers:            s.encryption.Transformers(),
		Named:                   named,
		Unreadable:              s.unreadable,
		EnableGarbageCollection: s.options.Garbage.Enabled,
		ClaimLabels:             s.bindings.ClaimLabels,
	})
	if err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	s.group.Opened(backend.Close)
	return backend, nil
}

func (s *requestAccess) newCustomResources(backend *storage.Backend, admit *admission.Admission, webhooks *webhooktransport.Tenants) (*customresource.Server, error) {
	system, err := config.SystemCRDs()
	if err != nil {
		return nil, fmt.Errorf("reading the CustomResourceDefinitions of system APIs: %w", err)
	}
	server, err := customresource.NewCustomResourceServer(customresource.Config{
		Storage:        backend.RESTOptionsGetter,
		Unreadable:     s.unreadable,
		System:         system,
		SystemIdentity: s.systemIdentity,
		SystemBound: func(cluster logicalcluster.Name, resource schema.GroupResource) bool {
			return config.RootExportOf(resource) != "" && s.bindsSystem(cluster)
		},
		Admission:    admit.Interface(),
		Authorizer:   s.authorizer,
		Webhooks:     webhooks,
		WebhookCalls: s.options.Serving.Limits.Max(ledger.WebhookCallsPerCluster),
		Convert: map[schema.GroupResource]definitions.Convert{
			kinds.APIExports.GroupResource(): apis.Convert, kinds.APIBindings.GroupResource(): apis.Convert,
		},
		Metrics: s.metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	return server, nil
}
