// Package frontproxy implements the front-proxy, the single address of a Shardplane installation. It
// authenticates requests, determines the shard of their logical cluster, and forwards them.
//
//	TLS ─► recover ─► count ─► probes ─► authenticate ─► mappings ─┬─► /clusters/…: resolve ─► forward ─► shard
//	                                                               ├─► /metrics
//	                                                               └─► 404
//	   root's Shards ─► followers (one a shard): Workspaces, LogicalClusters ─► index ─┘
//
// The router (route.go) determines the target of each call: the shard of a logical cluster, a server of the mapping
// file, a mounted server, or all shards. The gate (gate.go) hides logical clusters from users without access.
//
// All state is read from the shards. The front-proxy serves the reachable shards even if others are unreachable.
package frontproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// drainTimeout bounds how long requests in flight may take during shutdown. Long-running requests are ended at once.
const drainTimeout = 5 * time.Second

// Server is a front-proxy that has opened its port and read its certificates. It serves only while Run runs.
type Server struct {
	handler

	serving       *serving.Listener
	shards        *shards
	shutdownDelay time.Duration

	group *lifecycle.Group
	drain context.CancelFunc
}

// NewFrontProxy reads certificates and kubeconfigs, opens the port and assembles the server. Only the values
// of ctx are used. The caller must call Run or Close.
func NewFrontProxy(ctx context.Context, o CompletedOptions) (s *Server, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s = &Server{shutdownDelay: o.ShutdownDelay, group: lifecycle.NewGroup("part")}
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()
	registry := prometheus.NewRegistry()
	mapped, o, err := openMappings(ctx, o)
	if err != nil {
		return s, err
	}
	mounts, err := newMounts(o.Mounts)
	if err != nil {
		return s, err
	}
	if s.serving, err = o.Serving.Listen(registry); err != nil {
		return s, err
	}
	s.group.Opened(s.serving.Close)
	if s.ownResponses, err = serving.NewOwnResponses(ctx, &o.Serving.Audit); err != nil {
		return s, err
	}
	client, err := dynamiccertificates.NewDynamicServingContentFromFiles("proxy-client-cert", o.ProxyClientCertFile, o.ProxyClientKeyFile)
	if err != nil {
		return s, fmt.Errorf("reading --proxy-client-cert-file and --proxy-client-key-file: %w", err)
	}
	if s.shards, err = openShards(o, client); err != nil {
		return s, err
	}
	instruments.Register(registry, s.shards)
	s.metrics = newMetrics(registry)
	s.router = s.newRouter(ctx, o, mapped, mounts, registry)
	s.health = &health{shards: s.shards}
	s.authentication, err = authn.NewAuthentication(authn.Options{UserOptions: o.Authentication}, authn.Sources{
		Accounts: serviceaccount.NewRemote(s.shards.shardsOf), Workspace: s.router.workspaceIssuers, Report: s.router.reportIssuer, Metrics: registry,
	})
	if err != nil {
		return s, err
	}
	s.serving.ClientCA = dynamiccertificates.NewUnionCAContentProvider(s.authentication.CAs...)
	s.identity = mapped.headers()
	s.inFlight = o.Serving.Limits.Ledger(ledger.RequestsResource, 0, registry)
	s.watches = o.Serving.Limits.Ledger(ledger.WatchesResource, 0, registry)
	s.addParts(client)
	return s, nil
}

func (s *Server) newRouter(ctx context.Context, o CompletedOptions, mapped mappedServers, mounts *mounts, registry *prometheus.Registry) *router {
	draining, drain := context.WithCancel(context.WithoutCancel(ctx))
	s.drain = drain
	s.group.Opened(drain)
	groups := authn.GroupFilter{PassOn: o.PassOnGroups, Drop: o.Authentication.DropGroups}
	rt := &router{
		gate: &gate{
			resolver: newResolver(s.shards.index, o.IndexTimeout, o.WorkspaceReadyTimeout, s.metrics.indexWaits), accessCache: newAccessCache(),
			groups: groups, unread: s.shards.unread,
		},
		shards: s.shards, mounts: mounts, mapped: mapped, forwarder: &forwarder{draining: draining, metrics: s.metrics},
		metrics: serving.NewMetrics(registry), readers: authz.NewReviewCache(readersFor, readersFor), url: s.URL(), features: o.Serving.FeatureGates,
	}
	if o.Authentication.DevTokens {
		rt.devTokens = authn.DevTokens()
	}
	return rt
}

func openShards(o CompletedOptions, client dynamiccertificates.CertKeyContentProvider) (*shards, error) {
	root, err := clientcmd.BuildConfigFromFlags("", o.RootKubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading --root-kubeconfig: %w", err)
	}
	config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAFile: o.ShardCAFile, CertFile: o.ShardClientCertFile, KeyFile: o.ShardClientKeyFile,
	}}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("reading --shard-ca-file, --shard-client-cert-file and --shard-client-key-file: %w", err)
	}
	if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
		return nil, fmt.Errorf("reading --shard-client-cert-file and --shard-client-key-file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(config.CAData) {
		return nil, fmt.Errorf("reading --shard-ca-file: %s contains no PEM certificate", o.ShardCAFile)
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, GetClientCertificate: clientCertificate(client)}
	return newShards(root, config, o, func(shard *peers.Peer) *backend { return newBackend(shard, tlsConfig) })
}

// URL returns the URL at which the server listens, without a path.
func (s *Server) URL() string { return s.serving.URL }

// Handler returns the handler chain without the listener. It serves while Run runs.
func (s *Server) Handler() http.Handler { return s.chain().Handler(s.router) }

// Close closes the port. Run calls it when it ends.
func (s *Server) Close() { s.group.Close() }

// Run serves until ctx is done, and then stops in reverse order of the start:
//
//	ctx done ─► not ready ─► after a delay watches end ─► the port closes, requests in flight complete
//	         ─► upgraded connections end ─► followers stop ─► connections to shards close
func (s *Server) Run(ctx context.Context) error { return s.group.Run(ctx) }

// addParts adds parts in the order of their dependencies. They stop in reverse order.
func (s *Server) addParts(client *dynamiccertificates.DynamicCertKeyPairContent) {
	s.group.Add(
		lifecycle.Part{Name: "shards", Run: s.shards.Run},
		lifecycle.Part{Name: "authentication", Run: s.authentication.Run},
		reloads("client certificate", nil, client),
		reloads("mounts", s.router.mounts.ca, s.router.mounts.client, s.router.mounts.public, s.router.mounts.trusted),
	)
	for _, m := range s.router.mapped {
		s.group.Add(reloads("certificates for "+m.path, m.ca, m.client, m.backend))
	}
	if s.ownResponses != nil {
		s.group.Add(lifecycle.Part{Name: "audit", Run: s.ownResponses.Run})
	}
	s.group.Add(lifecycle.Part{Name: "listener", Run: s.serve})
}

func (s *Server) serve(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	stopServing := make(chan struct{})
	drained, closed, err := s.serving.Serve(s.Handler(), drainTimeout, stopServing)
	if err != nil {
		return fmt.Errorf("serving on %s: %w", s.URL(), err)
	}
	logger.Info("Serving", "url", s.URL())
	<-ctx.Done()
	logger.Info("Shutting down")
	s.health.stopping.Store(true)
	<-time.After(s.shutdownDelay) // requests still need the shards meanwhile
	s.drain()
	close(stopServing)
	<-closed
	<-drained
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		s.requests.Wait()
	}()
	select {
	case <-idle:
	case <-time.After(drainTimeout):
	}
	return nil
}
