package shard

import (
	"context"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/serving"
)

// part is a piece of a running server.
type part struct {
	name string
	run  func(ctx context.Context) error
}

func (p part) Name() string                  { return p.name }
func (p part) Run(ctx context.Context) error { return p.run(ctx) }

// assembleParts lists what runs, in the order of starting.
func (s *Server) assembleParts() ([]reconcile.Runnable, error) {
	informers := &client.Group{}
	informers.Add(s.local.logicalClusters, s.local.workspaces)
	return []reconcile.Runnable{
		part{"api", func(ctx context.Context) error {
			// Watches must see the end of the server when it stops, not before:
			// those of its own controllers have ended by then.
			defer context.AfterFunc(ctx, s.stopServing)()
			return serving.Run(ctx, s.generic)
		}},
		part{"custom-resources", s.customResources.Run},
		part{"informers", informers.Run},
	}, nil
}
