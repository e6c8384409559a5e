package controllers

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// perCache are controllers that write the same into each cache to which the shard pushes. Each goes by what the shard
// has there, and none waits for another.
type perCache struct {
	name string
	all  []toCache
}

type toCache struct {
	written    client.Runner
	controller reconcile.Runnable
}

// newPerCache returns such controllers of a resource. written has what the shard has in a cache.
func newPerCache[T client.Object](d Deps, name string, informer func(client.Scope, client.InformerOptions[T]) *client.Informer[T],
	controller func(cache Pushed, written *client.Informer[T]) reconcile.Runnable,
) reconcile.Made {
	p := perCache{name: name}
	for _, cache := range d.Pushed {
		written := informer(cache.Cache.Shard(d.ShardName).Wildcard(), client.InformerOptions[T]{Name: name + " in cache " + cache.Name})
		p.all = append(p.all, toCache{written, controller(cache, written)})
	}
	return after(p)
}

// Name returns the name that they have together.
func (p perCache) Name() string { return p.name }

// Run runs all until ctx is done, or one fails.
func (p perCache) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range p.all {
		group.Go(func() error { return c.written.Run(ctx) })
		group.Go(func() error {
			if err := c.written.WaitForSync(ctx); err != nil {
				return nil //nolint:nilerr // stopped while it waited, which is no failure
			}
			return c.controller.Run(ctx)
		})
	}
	return group.Wait()
}
