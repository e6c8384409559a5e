package frontproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// drainTimeout is how long requests in flight may take when the server stops;
// long-running ones are ended at once.
const drainTimeout = 5 * time.Second

// Server is a front-proxy whose port is taken and whose certificates are read,
// but which does not serve before Run.
type Server struct {
	serving *serving.Listener
	// metrics serves those of the server.
	metrics http.Handler
	// authentication tells who a request is from.
	authentication *authn.Authentication
	// devTokens are the tokens that are passed on to shards; there may be none.
	devTokens map[string]*user.DefaultInfo
	shards    *shards
	forwarder *forwarder
	readers   *metricsReaders
	// mapped are the servers of the mapping file, those of longer paths first, and identity
	// the headers by which they and the shards are told who somebody is.
	mapped   []*mappedServer
	identity identityHeaders
	mounts   *mounts
	// client is the certificate with which requests are forwarded.
	client *dynamiccertificates.DynamicCertKeyPairContent
	// bodies say how long bodies of requests take at most.
	bodies bodies.Rate
	// inFlight and watches are what each user has of requests and of streams.
	inFlight, watches *ledger.Ledger
	// shutdownDelay is for how long requests are served after the end of readiness.
	shutdownDelay time.Duration
	// answers records what the front-proxy answers itself; it may be nil.
	answers *serving.OwnAnswers

	group *lifecycle.Group
	// drain ends long-running requests.
	drain    context.CancelFunc
	stopping atomic.Bool
	wasReady atomic.Bool
	requests tracker
}

// New reads certificates and kubeconfigs, takes the port and assembles the
// server. ctx is for values only; the caller has to Run or to Close the server.
func New(ctx context.Context, o CompletedOptions) (s *Server, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	m := newMetrics(registry)
	s = &Server{
		metrics: serving.NewMetrics(registry),
		bodies:  o.Serving.Bodies, shutdownDelay: o.ShutdownDelay, group: lifecycle.New("part"),
		inFlight: o.Serving.Limits.Ledger(ledger.RequestsResource, 0, registry), watches: o.Serving.Limits.Ledger(ledger.WatchesResource, 0, registry),
		identity: identityHeaders{prefixes: slices.Clone(ownIdentity.prefixes)},
	}
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()
	if o, err = s.openMappings(ctx, o); err != nil {
		return s, err
	}
	if s.mounts, err = newMounts(o.Mounts); err != nil {
		return s, err
	}
	if s.serving, err = o.Serving.Listen(registry); err != nil {
		return s, err
	}
	s.group.Opened(s.serving.Close)
	if s.answers, err = serving.NewOwnAnswers(&o.Serving.Audit); err != nil { //nolint:contextcheck // it outlives the start
		return s, err
	}
	if s.client, err = dynamiccertificates.NewDynamicServingContentFromFiles("proxy-client-cert", o.ProxyClientCertFile, o.ProxyClientKeyFile); err != nil {
		return s, fmt.Errorf("reading --proxy-client-cert-file and --proxy-client-key-file: %w", err)
	}
	if err := s.openShards(o); err != nil {
		return s, err
	}
	instruments.Register(registry, s.shards)
	if o.Authentication.DevTokens {
		s.devTokens = authn.DevTokens()
	}
	s.authentication, err = authn.New(authn.Options{UserOptions: o.Authentication}, authn.Sources{
		Accounts: serviceaccount.NewRemote(s.shards.holding), Workspace: s.knownIn, Tell: s.tellOfIssuer, Metrics: registry,
	})
	if err != nil {
		return s, err
	}
	s.serving.ClientCA = dynamiccertificates.NewUnionCAContentProvider(s.authentication.CAs...)
	draining, drain := context.WithCancel(context.WithoutCancel(ctx))
	s.drain = drain
	s.group.Opened(drain)
	s.forwarder = &forwarder{
		resolver: newResolver(s.shards.index, o.IndexTimeout, o.WorkspaceReadyTimeout, m.indexWaits), visitors: newVisitors(), draining: draining,
		groups: authn.GroupFilter{PassOn: o.PassOnGroups, Drop: o.Authentication.DropGroups}, unread: s.shards.unread, metrics: m,
	}
	s.readers = newMetricsReaders(s.shards.root, s.forwarder.groups)
	s.addParts()
	return s, nil
}

// openShards reads how shards are reached. Nothing is connected yet.
func (s *Server) openShards(o CompletedOptions) error {
	tlsConfig, err := newTLSConfig(o.ShardCAFile, s.client)
	if err != nil {
		return err
	}
	root, err := clientcmd.BuildConfigFromFlags("", o.RootKubeconfig)
	if err != nil {
		return fmt.Errorf("reading --root-kubeconfig: %w", err)
	}
	config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAFile: o.ShardCAFile, CertFile: o.ShardClientCertFile, KeyFile: o.ShardClientKeyFile,
	}}
	if err := rest.LoadTLSFiles(config); err != nil {
		return fmt.Errorf("reading --shard-ca-file, --shard-client-cert-file and --shard-client-key-file: %w", err)
	}
	if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
		return fmt.Errorf("reading --shard-client-cert-file and --shard-client-key-file: %w", err)
	}
	s.shards, err = newShards(root, config, o, func(shard *peers.Peer) *backend { return newBackend(shard, tlsConfig) })
	return err
}

// URL returns where the server listens, without a path.
func (s *Server) URL() string { return s.serving.URL }

// Handler returns what answers requests, without the listener in front of it. It
// serves while Run runs.
func (s *Server) Handler() http.Handler { return s.chain().Handler(http.HandlerFunc(s.serveMappings)) }

// Close gives the port back. Run does so itself.
func (s *Server) Close() { s.group.Close() }

// Run serves until ctx is done and then stops in reverse order of the start:
//
//	ctx done ─► not ready ─► after a delay watches end ─► the port closes, requests in flight are answered
//	         ─► upgraded connections end ─► followers stop ─► connections to shards close
func (s *Server) Run(ctx context.Context) error { return s.group.Run(ctx) }

// addParts lists what runs, each before what builds on it and so ends earlier.
func (s *Server) addParts() {
	s.group.Add(
		lifecycle.Part{Name: "shards", Run: s.shards.Run},
		lifecycle.Part{Name: "authentication", Run: s.authentication.Run},
		lifecycle.Part{Name: "client certificate", Run: func(ctx context.Context) error {
			s.client.Run(ctx, 1)
			return nil
		}},
	)
	s.group.Add(s.mounts.part())
	for _, m := range s.mapped {
		s.group.Add(m.part())
	}
	if s.answers != nil {
		s.group.Add(lifecycle.Part{Name: "audit", Run: s.answers.Run})
	}
	s.group.Add(lifecycle.Part{Name: "listener", Run: s.serve})
}

// serve answers requests until ctx ends, and returns when all are answered.
func (s *Server) serve(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	stopServing := make(chan struct{})
	drained, closed, err := s.serving.Serve(s.Handler(), drainTimeout, stopServing)
	if err != nil {
		return fmt.Errorf("serving on %s: %w", s.URL(), err)
	}
	logger.Info("Front-proxy serves", "url", s.URL())
	<-ctx.Done()
	logger.Info("Front-proxy stops")
	s.stopping.Store(true)
	<-time.After(s.shutdownDelay) // while all that requests need goes on
	s.drain()
	close(stopServing)
	<-closed
	<-drained
	s.requests.wait(drainTimeout)
	return nil
}

// Ready returns why requests cannot be served yet, or nil.
func (s *Server) Ready() error {
	if s.stopping.Load() {
		return errors.New("the front-proxy is shutting down")
	}
	if s.wasReady.Load() {
		return nil
	}
	if err := s.shards.ready(); err != nil {
		return err
	}
	s.wasReady.Store(true)
	return nil
}

func (s *Server) liveness() []healthz.HealthChecker {
	return []healthz.HealthChecker{healthz.PingHealthz}
}

func (s *Server) readiness() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.PingHealthz,
		healthz.NamedCheck("shards", func(*http.Request) error { return s.Ready() }),
	}
}

// tracker knows how many requests run. Unlike the HTTP server it also knows
// those whose connection was upgraded.
type tracker struct {
	mu      sync.Mutex
	running int
	idle    chan struct{}
}

func (t *tracker) enter() (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running--
		if t.running == 0 && t.idle != nil {
			close(t.idle)
			t.idle = nil
		}
	}
}

// wait waits until no request runs, but not longer than timeout.
func (t *tracker) wait(timeout time.Duration) {
	t.mu.Lock()
	if t.running == 0 {
		t.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	t.idle = idle
	t.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
