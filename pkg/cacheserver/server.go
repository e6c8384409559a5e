package cacheserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/shardplane/shardplane/pkg/controllers/replication"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/ownership"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/encryption"
)

// errEtcdEnded says that the embedded etcd stopped by itself.
var errEtcdEnded = errors.New("the embedded etcd stopped: its log says why")

// Server is a cache server whose data is open and whose port is taken, but
// which does not serve before Run.
type Server struct {
	etcd       *etcd.Handle
	encryption *encryption.Providers
	backend    *storage.Backend
	listener   net.Listener
	resources  *customresource.Server
	generic    *genericapiserver.GenericAPIServer

	// endStreams ends all watches.
	endStreams context.CancelFunc
	closeOnce  sync.Once
}

// New opens the data and the port and assembles the server. ctx bounds the
// start only. The caller has to Run or to Close the server.
func New(ctx context.Context, o CompletedOptions) (s *Server, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s = &Server{}
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()

	streams, endStreams := context.WithCancel(context.WithoutCancel(ctx))
	s.endStreams = endStreams
	authorizer, err := newAuthorizer()
	if err != nil {
		return s, err
	}
	// The port before the data: that it is taken is the more frequent mistake,
	// and starting an etcd takes longer.
	c, _, err := serving.NewConfig(o.Serving, serving.API{Title: "Shardplane cache server", Scheme: scheme, Codecs: codecs, Definitions: openapi.GetOpenAPIDefinitions}, authorizer)
	if err != nil {
		return s, err
	}
	s.listener = c.SecureServing.Listener
	c.Authentication.Authenticator = withStrangers(c.Authentication.Authenticator)
	serving.AllowSnapshots(c)

	if err := s.openStorage(ctx, o); err != nil {
		return s, err
	}
	c.ReadyzChecks = append(c.ReadyzChecks, s.encryption.HealthChecks()...)
	// Not a liveness check: a restart of this server brings no etcd back.
	c.AddReadyzChecks(healthz.NamedCheck("etcd", func(r *http.Request) error { return s.backend.Ready(r.Context()) }))
	if s.resources, err = newResources(s.backend, c); err != nil {
		return s, err
	}
	serving.SetChain(streams, c, withScope, func(api http.Handler) http.Handler {
		return withWildcardVerbs(serving.WithListRules(s.resources.Wrap(api), codecs))
	})
	s.generic, err = c.Complete(nil).New("cache-server", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return s, fmt.Errorf("assembling the API server: %w", err)
	}
	serving.InstallSnapshots(s.generic, s.etcd, codecs)
	return s, nil
}

func (s *Server) openStorage(ctx context.Context, o CompletedOptions) (err error) {
	if s.etcd, err = o.Etcd.Open(ctx); err != nil {
		return err
	}
	if s.encryption, err = o.Encryption.Open(ctx, "cache-server"); err != nil {
		return err
	}
	if err := ownership.Claim(ctx, s.etcd, etcd.Identity{Kind: etcd.KindCacheServer}, s.encryption.Transformers()); err != nil {
		return err
	}
	s.backend, err = storage.NewBackend(storage.BackendConfig{ //nolint:contextcheck // it asks etcd with the context of the client, which outlives the start
		Client:             s.etcd.Client(),
		Transformers:       s.encryption.Transformers(),
		Prefix:             s.etcd.Prefix(),
		CompactionInterval: o.Etcd.CompactionInterval,
		ShardSegment:       true,
	})
	if err != nil {
		return fmt.Errorf("opening the storage: %w", err)
	}
	return nil
}

// newResources returns the handler of the replicated kinds.
func newResources(backend *storage.Backend, c *genericapiserver.Config) (*customresource.Server, error) {
	crds, err := definitions(replication.Table())
	if err != nil {
		return nil, err
	}
	resources, err := customresource.New(customresource.Config{
		Storage:             backend.RESTOptionsGetter,
		System:              crds,
		SystemOnly:          true,
		Authorizer:          c.Authorization.Authorizer,
		RequestTimeout:      c.RequestTimeout,
		MaxRequestBodyBytes: c.MaxRequestBodyBytes,
	})
	if err != nil {
		return nil, fmt.Errorf("serving the replicated kinds: %w", err)
	}
	return resources, nil
}

// URL returns where the server listens, without a path.
func (s *Server) URL() string { return "https://" + s.listener.Addr().String() }

// Handler returns what answers requests, without the listener in front of it. It
// serves while Run runs.
func (s *Server) Handler() http.Handler { return s.generic.Handler }

// Run serves until ctx is done and then closes the server, in reverse order of
// its start:
//
//	ctx done ─► watches end ─► requests in flight are answered, the port closes
//	         ─► caches end ─► storage closes ─► etcd stops
//
// It fails if the port or the data fail it.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer context.AfterFunc(ctx, s.endStreams)()

	// The caches live as long as requests may use them.
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.resources.Run(background); err != nil {
			fail(fmt.Errorf("custom resources: %w", err))
		}
	})
	wg.Go(func() { _ = s.encryption.Run(background) }) // it ends when it is told to
	wg.Go(func() {
		select {
		case <-s.etcd.Done():
			fail(errEtcdEnded)
		case <-background.Done():
		}
	})
	err := serving.Run(ctx, s.generic)
	stopBackground()
	wg.Wait()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// Close releases what New opened. A server that runs is stopped through the
// context of Run; calling Close again does nothing.
func (s *Server) Close() {
	s.closeOnce.Do(func() {
		if s.endStreams != nil {
			s.endStreams()
		}
		if s.listener != nil {
			_ = s.listener.Close()
		}
		if s.backend != nil {
			s.backend.Close()
		}
		if s.encryption != nil {
			s.encryption.Close()
		}
		if s.etcd != nil {
			s.etcd.Stop()
		}
	})
}
