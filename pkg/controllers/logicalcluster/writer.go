package logicalcluster

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// writer changes LogicalClusters.
type writer struct {
	commit func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error)
	latest reconcile.Latest[*corev1alpha1.LogicalCluster]
}

// write commits a change and remembers the answer until the informer has it.
func (w *writer) write(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	written, err := w.commit(ctx, old, updated)
	if written != nil && written.ResourceVersion != old.ResourceVersion {
		w.latest.Wrote(written)
	}
	return written, err
}

// commit returns the function that writes to the shard.
func (c Config) commit() func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	return func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
		scope := c.Local.Cluster(logicalcluster.From(old).Path())
		return reconcile.CommitStored(ctx, c.Objects, logicalClustersResource, kinds.LogicalClusters.In(scope), old, updated)
	}
}
