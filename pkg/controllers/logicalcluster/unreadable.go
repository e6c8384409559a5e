package logicalcluster

import (
	"context"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// objectsReadable is the condition of a LogicalCluster that is False while some of its objects
	// cannot be read.
	objectsReadable conditionsv1alpha1.ConditionType = "ObjectsReadable"
	// unreadableObjects is its reason.
	unreadableObjects = "UnreadableObjects"
	// recheck is how often is checked whether such objects were deleted or fixed.
	recheck = time.Minute
)

// Unreadable are the objects that this process could not read.
type Unreadable struct {
	// Describe names those of a logical cluster, and is empty if there are none.
	Describe func(ctx context.Context, cluster logicalcluster.Name) (string, error)
	// Follow has changed called with each logical cluster for which that changes, until stop is called.
	Follow func(changed func(logicalcluster.Name)) (stop func())
}

// sources are those of a controller that reports the objects.
func (u Unreadable) sources() []reconcile.Source[client.Key] {
	if u.Follow == nil {
		return nil
	}
	return []reconcile.Source[client.Key]{u.source}
}

// source adds the logical clusters for which the objects change.
func (u Unreadable) source(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return u.Follow(func(cluster logicalcluster.Name) {
		for _, key := range keyOf(cluster) {
			queue.Add(key)
		}
	}), nil
}

// reportUnreadable returns the LogicalCluster with the condition that reports its objects that cannot be
// read. There is none if there never were any.
func reportUnreadable(lc *corev1alpha1.LogicalCluster, description string) *corev1alpha1.LogicalCluster {
	if description == "" && !conditions.IsFalse(lc, objectsReadable) {
		return lc
	}
	lc = lc.DeepCopy()
	if description == "" {
		conditions.MarkTrue(lc, objectsReadable)
		return lc
	}
	conditions.MarkFalse(lc, objectsReadable, unreadableObjects, conditionsv1alpha1.ConditionSeverityWarning, "%s", description)
	return lc
}
