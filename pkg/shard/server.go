package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// etcdStartTimeout limits the start of the embedded etcd, including the recovery of its log, or the
// first contact with an external etcd.
const etcdStartTimeout = 2 * time.Minute

// NewShard opens the data and the listener and assembles the server. ctx limits opening only. If New fails, it
// closes everything that it has opened.
func NewShard(ctx context.Context, o CompletedOptions) (_ *Server, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
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

// newServer constructs the remaining steps.
func (s *storedData) newServer() (*Server, error) {
	c, err := serving.NewConfig(&s.options.Serving, s.listener, serving.API{
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
	bound, err := installation.newAccessRules().newBoundResources()
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
func newBase(ctx context.Context, o CompletedOptions) (*base, error) {
	s := &base{options: o, metrics: prometheus.NewRegistry(), group: lifecycle.NewGroup("part")}
	var err error
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

func (s *base) openData(ctx context.Context) (*storedData, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdStartTimeout)
	defer cancel()
	d := &storedData{base: s, unreadable: unreadable.NewRecord(s.metrics)}
	var err error
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
	i := &installation{storedData: s, watches: &serving.OpenWatches{}, connections: &connections{}}
	var err error
	if i.sources, i.connections.cache, err = s.openSources(loopback); err != nil {
		return nil, err
	}
	i.informers = controllers.NewInformers(i.sources)
	access, err := s.otherShards()
	if err != nil {
		return nil, err
	}
	i.peers = peers.NewPeerBook(peers.Config{Self: s.options.Name, Local: i.sources.Local, Shards: i.informers.Shards, Access: access})
	i.remoteParams = remoteparams.NewParamCache(remoteparams.FromPeers(i.peers.Named))
	i.local = newLocal(s.options.Name, i.sources.Local, i.informers, i.watches)
	i.subtrees = newSubtrees(s.options.Name, s.usage, i.informers)
	return i, nil
}

func (s *installation) newAccessRules() *accessRules {
	index := rbac.NewIndex()
	index.Follow(s.informers.RBAC)
	others := rbac.NewShards(s.informers.Registered)
	others.Follow(s.informers.RBAC)
	rules := rbac.NewRBACAuthorizer(rbac.Config{
		Index: index, Global: others, System: tenancy.AdminCluster, HasSynced: s.informers.RBAC.HasSynced, Local: s.local.has,
	})
	return &accessRules{installation: s, rules: rules, reviews: newReviews(rules, s.local.has, s.peers)}
}

func (s *accessRules) newBoundResources() (*boundResources, error) {
	b := &boundResources{accessRules: s, late: &lateServers{}}
	var err error
	if b.bindings, err = s.newBindings(b.late); err != nil {
		return nil, err
	}
	b.replicas = s.newReplicas(b.bindings)
	return b, nil
}

func (s *boundResources) newRequestAccess() (*requestAccess, error) {
	a := &requestAccess{boundResources: s, exportVirtualWorkspaces: s.newExportVirtualWorkspaces()}
	a.virtualWorkspaces = s.newVirtualWorkspaces(a.exportVirtualWorkspaces)
	var err error
	if a.authentication, err = authn.NewAuthentication(s.options.Authentication, authn.Sources{
		Accounts: newAccounts(s.sources.Local, s.informers, s.peers), Workspace: s.workspaceOf, Report: s.recordIssuerFault, Metrics: s.metrics,
	}); err != nil {
		return nil, err
	}
	if a.rights, err = s.newAuthorizer(a.virtualWorkspaces); err != nil {
		return nil, err
	}
	a.authorizer = authz.WithinVirtualWorkspaces(a.rights)
	return a, nil
}

// newServer assembles the API server.
func (s *objectServers) newServer(c *genericapiserver.Config) (*Server, error) {
	server := &Server{objectServers: s}
	serving.Authenticate(c, s.authentication)
	c.Authorization.Authorizer = s.authorizer
	c.AdmissionControl = s.admission.Interface()
	serving.AllowSnapshots(c)
	serving.SetChain(c, s.chain)
	c.RESTOptionsGetter = s.backend.RESTOptionsGetter(registry.StorageCodec)
	c.ReadyzChecks = append(c.ReadyzChecks, server.readyChecks()...)
	c.ReadyzChecks = append(c.ReadyzChecks, s.encryption.HealthChecks()...)
	c.LivezChecks = append(c.LivezChecks, healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Health(r.Context()) }))

	generic, err := c.Complete(nil).New("shardplane-shard", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("assembling the API server: %w", err)
	}
	server.generic = generic
	serving.InstallSnapshots(generic, s.etcd, registry.Codecs)
	serving.InstallMetrics(generic, s.metrics)
	serving.InstallOpenAPI(generic, c)
	access := s.access(s.rights)
	access.Identity = s.identity()
	if err := registry.Install(generic, c.RESTOptionsGetter, access); err != nil {
		return nil, err
	}
	return server, s.customResources.InstallCRDs(generic)
}

func (s *Server) readyChecks() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Ready(r.Context()) }),
		healthz.NamedCheck("definitions", func(*http.Request) error {
			return synced(s.customResources.HasSynced(), "not all CustomResourceDefinitions are loaded yet")
		}),
		healthz.NamedCheck("bindings", func(*http.Request) error {
			return synced(s.bindings.HasSynced(), "not all APIBindings are loaded yet")
		}),
		healthz.NamedCheck("logical-clusters", func(*http.Request) error {
			return synced(s.local.hasSynced(), "not all logical clusters are loaded yet")
		}),
		healthz.NamedCheck("rbac", func(*http.Request) error {
			return synced(s.rules.HasSynced(), "not all roles and bindings are loaded yet")
		}),
		healthz.NamedCheck("bootstrap", func(*http.Request) error {
			return synced(s.bootstrapped.Load(), "not all initial objects of the shard exist yet")
		}),
		// Without this check, requests of administrators could be rejected at first.
		healthz.NamedCheck("bootstrap-rbac", func(*http.Request) error {
			if s.bootstrapped.Load() && s.rules.CaughtUp(tenancy.AdminCluster) && s.rules.CaughtUp(core.RootCluster) {
				s.rulesReady.Store(true) // later writes must not make the shard unready
			}
			return synced(s.rulesReady.Load(), "not all initial roles and bindings are in effect yet")
		}),
	}
}

func synced(ok bool, otherwise string) error {
	if ok {
		return nil
	}
	return errors.New(otherwise)
}

// Loopback returns a client configuration of a system:masters user. It is valid as long as the server.
func (s *Server) Loopback() *rest.Config { return rest.CopyConfig(s.generic.LoopbackClientConfig) }

// Handler returns the handler of requests without the listener. It serves while Run is running.
func (s *Server) Handler() http.Handler { return s.generic.Handler }

// Close closes everything that New opened, in reverse order. Run calls it itself.
func (s *Server) Close() { s.close() }

// Run serves until ctx is done or a part of the server fails. It then stops the parts in reverse order and
// closes the server. It returns after all parts have ended.
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
