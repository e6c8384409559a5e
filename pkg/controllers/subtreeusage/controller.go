// Package subtreeusage reports to other shards, through a cache server, the usage and the limits of workspace subtrees on
// this shard.
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
	// part is the fraction of a limit by which the usage may change without a report, so that there are fewer writes.
	part = 1000
	// unknownWait is the delay before an unknown usage is checked again.
	unknownWait = time.Second
	// maxBackoff is low because other shards need the report to enforce limits.
	maxBackoff = 5 * time.Second
)

// Config configures the controller.
type Config struct {
	ShardName string
	// Cache reaches the cache server, and Usages contains the SubtreeUsages of the shard there.
	Cache  *client.Factory
	Usages *client.Informer[*subtrees.SubtreeUsage]
	// Sums is the current usage.
	Sums *subtrees.Sums
}

// NewSubtreeUsageController returns the controller.
func NewSubtreeUsageController(config Config) *reconcile.Controller[client.Key] {
	key := func(top logicalcluster.Name) client.Key {
		return client.Key{Shard: config.ShardName, Cluster: top, Name: corev1alpha1.LogicalClusterName}
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: config.reconcile, MaxBackoff: maxBackoff,
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
	published, err := c.Usages.Lister().Get(key)
	var write error
	switch exists := err == nil; {
	case !exists && share == nil:
	case !exists:
		_, write = usages.Create(ctx, share, metav1.CreateOptions{})
	case share == nil:
		write = usages.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &published.UID}})
	case !near(published, share, c.Sums.Most(key.Cluster)):
		share.ObjectMeta = *published.ObjectMeta.DeepCopy()
		_, write = usages.Update(ctx, share, metav1.UpdateOptions{})
	}
	if write == nil || apierrors.IsAlreadyExists(write) || apierrors.IsNotFound(write) || apierrors.IsConflict(write) {
		return reconcile.Result{}, nil // the informer will report it
	}
	return reconcile.Result{}, fmt.Errorf("publishing the usage of the subtree of %s on this shard: %w", key.Cluster, write)
}

// near reports whether the last report is accurate enough.
func near(published, share *subtrees.SubtreeUsage, most subtrees.Amount) bool {
	return ptr.Equal(published.Limit, share.Limit) &&
		nearly(published.Used.Objects, share.Used.Objects, most.Objects) && nearly(published.Used.Bytes, share.Used.Bytes, most.Bytes)
}

func nearly(published, now, most int64) bool {
	return most == 0 || max(published-now, now-published)*part <= most
}
