package push

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
)

// remove deletes the replicas of a resource that left the table, until there are
// none or ctx is done.
func (m *mirror) remove(ctx context.Context) error {
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: m.config.RemovalInterval}
	err := backoff.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		left, err := m.removeAll(ctx)
		if err != nil {
			klog.FromContext(ctx).Info("Cannot delete the replicas of a removed resource yet, trying again", "left", left, "err", err)
		}
		return left == 0 && err == nil, nil
	})
	if err == nil {
		m.removed()
	}
	return nil // stopped, which is no failure
}

// removeAll deletes what there is, and returns how many replicas that were. Where
// the cache server does not serve the resource, there is nothing to delete.
func (m *mirror) removeAll(ctx context.Context) (int, error) {
	var replicas []*unstructured.Unstructured
	err := replication.EachObject(ctx, m.config.replicas().Wildcard(), m.resource, func(obj *unstructured.Unstructured) { replicas = append(replicas, obj) })
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	for _, replica := range replicas {
		todo, obj := replication.Decide(m.resource, nil, replica)
		if _, err := m.apply(ctx, client.KeyOf(replica), todo, obj); err != nil && !apierrors.IsConflict(err) {
			return len(replicas), err
		}
	}
	return len(replicas), nil
}
