package shard

import (
	"context"
	"fmt"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/controllers/rootca"
	"github.com/shardplane/shardplane/pkg/controllers/serviceaccount"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/serving"
)

// addParts adds the parts in the order in which they are started. They are stopped in reverse order.
func (s *Server) addParts() error {
	informers := &client.Group{}
	informers.Add(append(s.informers.Runners(), s.bindings.Informer(), s.bindings.Copies())...)
	snapshot := s.replicaSnapshot()
	garbage, err := s.garbage(s.generic.LoopbackClientConfig)
	if err != nil {
		return err
	}
	rootCA, err := s.rootCA()
	if err != nil {
		return err
	}
	base, external := s.options.urls(s.listener.URL)
	deps := controllers.Deps{
		Resolve:   s.exportCluster,
		Sources:   s.sources,
		Informers: s.informers,
		BaseURL:   base, ExternalURL: external, VirtualWorkspaceURL: s.options.VirtualWorkspaceURL,
		Peers:        s.peers,
		Tokens:       s.tokens(),
		RootCA:       rootCA,
		Subtrees:     s.subtrees,
		Garbage:      garbage,
		Objects:      s.customResources,
		Stored:       s.stored(),
		Unserved:     s.deleteUnserved,
		Unreadable:   s.unreadableObjects(),
		Load:         s.load,
		Heartbeat:    s.connections.heartbeat,
		Mounts:       mountStore{s.usage, s.customResources},
		Cached:       s.cachedObjects(),
		Definitions:  s.customResources.Definitions(),
		Bindings:     s.bindings.Informer(),
		APIs:         boundAPIs{s.bindings, s.customResources, s.keepsSystem},
		BindsSystem:  s.readsRoot(),
		HomeCreators: s.options.Homes.creators(),
		Bootstrapped: func() { s.bootstrapped.Store(true) },
		Metrics:      s.metrics,
	}
	everywhere, leading, err := managers(deps)
	if err != nil {
		return err
	}
	s.group.Add(
		lifecycle.Part{Name: "etcd", Run: s.etcd.Run},
		lifecycle.Part{Name: "usage", Run: s.usage.Run},
		lifecycle.Part{Name: "authentication", Run: s.authentication.Run},
		lifecycle.Part{Name: "encryption", Run: s.encryption.Run},
		lifecycle.Part{Name: "admission", Run: s.admission.Run},
		// The informers must run until the last response is sent, because a write that is acknowledged must have
		// effect on later requests.
		lifecycle.Part{Name: "informers", Run: func(ctx context.Context) error {
			snapshot.Restore(ctx)
			return informers.Run(ctx)
		}},
		lifecycle.Part{Name: "replica snapshot", Run: snapshot.Run},
		lifecycle.Part{Name: "bindings", Run: s.bindings.Run},
		lifecycle.Part{Name: "replicas", Run: s.replicas.Run},
		lifecycle.Part{Name: "subtrees", Run: s.subtrees.Run},
		lifecycle.Part{Name: "peers", Run: s.peers.Run},
		lifecycle.Part{Name: "custom resources", Run: s.customResources.Run},
		lifecycle.Part{Name: "api", Run: func(ctx context.Context) error {
			// Watches of users must end when the server stops. Those of its own controllers have ended by then.
			defer context.AfterFunc(ctx, s.stopServing)()
			return serving.Run(ctx, s.generic)
		}},
		lifecycle.Part{Name: "controllers of every replica", Run: everywhere.Run},
		lifecycle.Part{Name: "controllers", Run: func(ctx context.Context) error {
			return s.lead(ctx, func(ctx context.Context) error {
				defer s.cached.Reset() // another leader may change it
				manager, err := leading()
				if err != nil {
					return err
				}
				return manager.Run(ctx)
			})
		}},
	)
	return nil
}

// managers returns the controllers of every replica and the constructor of those of the leader. The constructor is
// called once immediately, because an error must fail the start, and then each time the replica becomes the leader.
func managers(deps controllers.Deps) (everywhere *lifecycle.Group, leading func() (*lifecycle.Group, error), err error) {
	leading = func() (*lifecycle.Group, error) {
		leader := deps
		var err error
		if leader.Replicated, err = replication.NewTable(replication.Defaults()...); err != nil {
			return nil, err
		}
		return reconcile.NewManager(controllers.Catalogue(), leader, reconcile.OnLeader)
	}
	if _, err = leading(); err != nil {
		return nil, nil, err
	}
	everywhere, err = reconcile.NewManager(controllers.Catalogue(), deps, reconcile.OnEveryReplica)
	return everywhere, leading, err
}

// rootCA follows the CA file of the front-proxy, or returns nil if none is configured.
func (s *base) rootCA() (*rootca.File, error) {
	if s.options.RootCAFile == "" {
		return nil, nil
	}
	file, err := rootca.OpenFile(s.options.RootCAFile)
	if err != nil {
		return nil, fmt.Errorf("--root-ca-file: %w", err)
	}
	s.group.Add(lifecycle.Part{Name: "root CA", Run: file.Run})
	return file, nil
}

func (s *requestAccess) tokens() serviceaccount.Issuer {
	if s.authentication.Issuer == nil {
		return nil
	}
	return s.authentication.Issuer
}
