// Package subtreeusage tells other shards, on a cache server, what this shard
// stores of the workspaces whose subtrees are limited, and which limits there are
// on it.
package subtreeusage

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Name is the name of the controller.
const Name = "subtreeusage"

const (
	// part is the part of a limit by which a share may differ from what others were
	// told: a busy subtree is not worth a write each second.
	part = 1000
	// unknownWait is when to look again at a share that is not known yet.
	unknownWait = time.Second
	// maxBackoff is low, since others wait for it to enforce limits.
	maxBackoff = 5 * time.Second
)

// Config is what the controller needs.
type Config struct {
	// ShardName is the name of the shard.
	ShardName string
	// Cache reaches the cache server.
	Cache *client.Factory
	// Usages are those of the shard on the cache server.
	Usages *client.Informer[*subtrees.SubtreeUsage]
	// Sums has what is to be told.
	Sums *subtrees.Sums
}

// New returns the controller.
func New(config Config) *reconcile.Controller[client.Key] {
	key := func(top logicalcluster.Name) client.Key {
		return client.Key{Shard: config.ShardName, Cluster: top, Name: corev1alpha1.LogicalClusterName}
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:       Name,
		Reconcile:  config.reconcile,
		MaxBackoff: maxBackoff,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Usages),
			func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
				return config.Sums.Follow(func(top logicalcluster.Name) { queue.Add(key(top)) }), nil
			},
		},
	})
}

func (c *Config) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	share, known := c.Sums.Share(key.Cluster)
	if !known {
		return reconcile.Result{RequeueAfter: unknownWait}, nil
	}
	usages := subtrees.Usages.In(c.Cache.Shard(c.ShardName).Cluster(key.Cluster.Path()))
	told, err := c.Usages.Lister().Get(key)
	var write error
	switch exists := err == nil; {
	case !exists && share == nil:
	case !exists:
		_, write = usages.Create(ctx, share, metav1.CreateOptions{})
	case share == nil:
		write = usages.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &told.UID}})
	case !near(told, share, c.Sums.Most(key.Cluster)):
		share.ObjectMeta = *told.ObjectMeta.DeepCopy()
		_, write = usages.Update(ctx, share, metav1.UpdateOptions{})
	}
	if write == nil || apierrors.IsAlreadyExists(write) || apierrors.IsNotFound(write) || apierrors.IsConflict(write) {
		return reconcile.Result{}, nil // the informer will tell
	}
	return reconcile.Result{}, fmt.Errorf("telling others what the subtree of %s stores here: %w", key.Cluster, write)
}

// near reports whether what was told is good enough.
func near(told, share *subtrees.SubtreeUsage, most subtrees.Amount) bool {
	return ptr.Equal(told.Limit, share.Limit) &&
		nearly(told.Used.Objects, share.Used.Objects, most.Objects) && nearly(told.Used.Bytes, share.Used.Bytes, most.Bytes)
}

func nearly(told, now, most int64) bool {
	return most == 0 || max(told-now, now-told)*part <= most
}
