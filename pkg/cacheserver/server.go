// Package cacheserver is the cache server: an API server with replicas of selected objects of all shards. From it,
// a shard can read objects of other shards without connecting to them.
//
//	shard root ──push──►  /services/cache/shards/root/clusters/<cluster>/apis/…
//	shard one  ──push──►  /services/cache/shards/one/clusters/<cluster>/apis/…
//	                          │  request filter: shard and cluster → context
//	                          │  client certificate → system:masters only
//	                          │  custom resources with a fixed set of kinds
//	                          ▼
//	                      <prefix>/<group>/<resource>/<shard>/<cluster>/[<ns>/]<name>
//	all shards ◄─watch──  /services/cache/shards/*/clusters/*/apis/…
//
// It does not validate objects: schemas are not enforced, status is not a subresource, and there is no admission. A shard
// owns the objects below its own name and replicates them (package replication). Package verify compares both sides for
// administrators, and package relay reads replicas from the cache servers of other regions.
package cacheserver

import (
	"context"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/cacheserver/relay"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/metriclabels"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/encryption"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// Server is a cache server with open data and an open port. It does not serve before Run.
type Server struct {
	parts
	etcd       *etcd.Handle
	encryption *encryption.Providers
	backend    *storage.Backend
	unreadable *unreadable.Record
	listener   *serving.Listener
	generic    *genericapiserver.GenericAPIServer

	group *lifecycle.Group
}

// NewCacheServer assembles a server, which the caller must Run or Close. ctx limits opening only.
func NewCacheServer(ctx context.Context, o CompletedOptions) (s *Server, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s = &Server{parts: parts{options: o, metrics: prometheus.NewRegistry()}, group: lifecycle.NewGroup("part")}
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()

	longRunning, endLongRunning := context.WithCancel(context.WithoutCancel(ctx))
	s.group.Opened(endLongRunning)
	// The port is opened first, because a port in use should be reported before etcd is started.
	if s.listener, err = o.Serving.Listen(s.metrics); err != nil {
		return s, err
	}
	s.group.Opened(s.listener.Close)
	c, err := serving.NewConfig(ctx, &o.Serving, s.listener, serving.API{Title: "Shardplane cache server", Scheme: scheme, Codecs: codecs, Definitions: openapi.GetOpenAPIDefinitions})
	if err != nil {
		return s, err
	}
	if err := s.openStorage(ctx, o); err != nil {
		return s, err
	}
	token := uuid.NewString()
	relays, err := s.newRelays(o, c.LoopbackClientConfig, token)
	if err != nil {
		return s, err
	}
	if err := restrict(c, o.Authentication, s.metrics, token, relays.Relays); err != nil {
		return s, err
	}
	c.ReadyzChecks = append(c.ReadyzChecks, s.encryption.HealthChecks()...)
	// This is no liveness check, because a restart of this server does not repair etcd.
	c.AddReadyzChecks(healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Ready(r.Context()) }))
	if s.resources, err = s.newResources(c); err != nil {
		return s, err
	}
	s.resources.AddSource(s.digests.cached)
	chain := func(c *genericapiserver.Config) serving.Chain { return s.chain(c, longRunning) }
	if s.generic, err = serving.NewAPIServer("cache-server", c, chain, s.etcd, s.metrics, codecs); err != nil {
		return s, err
	}
	s.group.Add(
		lifecycle.Part{Name: "etcd", Run: s.etcd.Run},
		lifecycle.Part{Name: "encryption", Run: s.encryption.Run},
		lifecycle.Part{Name: "digests", Run: s.digests.counter.Run},
		lifecycle.Part{Name: "removed shards", Run: s.removed.Run},
		lifecycle.Part{Name: "orphaned replicas", Run: newOrphanedReplicas(s.digests, s.removed.notes, o.RemovedShardGracePeriod).Run},
		lifecycle.Part{Name: "unregistered shards", Run: newUnregisteredShards(s.removed, s.digests.shards, s.metrics).Run},
		// The caches must exist as long as requests may use them.
		lifecycle.Part{Name: "custom resources", Run: s.resources.Run},
		lifecycle.Part{Name: "api", Run: func(ctx context.Context) error {
			defer context.AfterFunc(ctx, endLongRunning)()
			return serving.Run(ctx, s.generic)
		}},
	)
	if relays != nil {
		s.group.Add(lifecycle.Part{Name: "relays", Run: relays.Run})
	}
	return s, nil
}

// newRelays returns nil if nothing is relayed. Relays use a client of this server with a role of its own.
func (s *Server) newRelays(o CompletedOptions, loopback *rest.Config, token string) (*relay.Relays, error) {
	config, err := o.relays()
	if err != nil || len(config.Relays) == 0 {
		return nil, err
	}
	loopback = rest.CopyConfig(loopback)
	loopback.BearerToken = token
	replicas, err := client.NewFactory(loopback)
	if err != nil {
		return nil, fmt.Errorf("relays: %w", err)
	}
	s.group.Opened(replicas.CloseIdleConnections)
	return relay.NewRelays(config, relay.Self{
		Name: o.Name, DataID: s.digests.dataID, Replicas: replicas, Written: written(), Timing: o.Relays, Metrics: s.metrics,
	})
}

func (s *Server) openStorage(ctx context.Context, o CompletedOptions) (err error) {
	if s.etcd, err = o.Etcd.Open(ctx); err != nil {
		return err
	}
	s.group.Opened(s.etcd.Stop)
	if s.encryption, err = o.Encryption.Open(ctx, "cache-server"); err != nil {
		return err
	}
	s.group.Opened(s.encryption.Close)
	if err := s.etcd.Claim(ctx, etcd.Identity{Kind: etcd.KindCacheServer}); err != nil {
		return err
	}
	named, err := metriclabels.Named()
	if err != nil {
		return err
	}
	s.unreadable = unreadable.NewRecord(ctx, s.metrics)
	s.backend, err = storage.NewBackend(storage.BackendConfig{ //nolint:contextcheck // its requests use the context of the client, which outlives the start
		Client:             s.etcd.Client(),
		Transformers:       s.encryption.Transformers(),
		Prefix:             s.etcd.Prefix(),
		CompactionInterval: o.Etcd.CompactionInterval,
		ShardSegment:       true,
		Named:              named,
		Unreadable:         s.unreadable,
	})
	if err != nil {
		return fmt.Errorf("opening the storage: %w", err)
	}
	s.group.Opened(s.backend.Close)
	if s.digests, err = newDigests(ctx, s.etcd, s.backend, o.Name); err != nil {
		return err
	}
	instruments.Register(s.metrics, s.digests)
	if o.Etcd.CompactionInterval > 0 {
		s.digests.counter.CompactEarly()
	}
	s.removed, err = newRemovedShards(ctx, s.etcd, o.RemovedShardGracePeriod, s.digests.prefixesOf)
	return err
}

// newResources returns the handler of all resources.
func (s *Server) newResources(c *genericapiserver.Config) (*customresource.Server, error) {
	crds, err := served(replication.Defaults())
	if err != nil {
		return nil, err
	}
	resources, err := customresource.NewCustomResourceServer(customresource.Config{
		Storage:        s.backend.RESTOptionsGetter,
		System:         crds,
		SystemOnly:     true,
		Replicas:       true,
		Authorizer:     c.Authorization.Authorizer,
		RequestTimeout: c.RequestTimeout,
		Metrics:        s.metrics,
		Unreadable:     s.unreadable,
	})
	if err != nil {
		return nil, fmt.Errorf("serving the replicated resources: %w", err)
	}
	return resources, nil
}

// URL returns the URL of the server without a path.
func (s *Server) URL() string { return s.listener.URL }

// Handler returns the handler of requests without the listener. It serves while Run is running.
func (s *Server) Handler() http.Handler { return s.generic.Handler }

// Run serves until ctx is done or a part fails, and then closes the server in reverse order of its start.
func (s *Server) Run(ctx context.Context) error {
	return s.group.Run(reconcile.WithMetrics(ctx, s.metrics)) // relays have controllers
}

// Close closes everything that New opened. It may be called several times, but not during Run.
func (s *Server) Close() { s.group.Close() }
