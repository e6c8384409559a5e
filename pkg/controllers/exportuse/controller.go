// Package exportuse reports to other shards, through a cache server, which exports have bindings on this shard, with one
// object for each export.
package exportuse

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
)

// Name is the name of the controller.
const Name = "exportuse"

// Config configures the controller.
type Config struct {
	ShardName string
	// Cache reaches the cache server, and Uses contains the ExportUses of the shard there.
	Cache     *client.Factory
	Uses      *client.Informer[*exportuses.ExportUse]
	Consumers exportuses.Consumers
}

// NewExportUseController returns the controller. Its keys are ExportUses of the shard.
func NewExportUseController(config Config) *reconcile.Controller[client.Key] {
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: config.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Uses),
			func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
				return config.Consumers.FollowConsumers(func(export client.Key) {
					export.Shard = config.ShardName
					queue.Add(export)
				}), nil
			},
		},
	})
}

func (c *Config) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	uses := exportuses.Uses.In(c.Cache.Shard(c.ShardName).Cluster(key.Cluster.Path()))
	published, err := c.Uses.Lister().Get(key)
	switch consumed := c.Consumers.Consumed(client.Key{Cluster: key.Cluster, Name: key.Name}); {
	case consumed == (err == nil):
		return reconcile.Result{}, nil
	case consumed:
		_, err = uses.Create(ctx, &exportuses.ExportUse{ObjectMeta: metav1.ObjectMeta{Name: key.Name}}, metav1.CreateOptions{})
	default:
		err = uses.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &published.UID}})
	}
	if err == nil {
		return reconcile.Result{}, nil // the informer will report it
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return reconcile.Result{Backoff: true}, nil // the informer is behind
	}
	return reconcile.Result{}, fmt.Errorf("publishing whether the APIExport %s has consumers on this shard: %w", key, err)
}
