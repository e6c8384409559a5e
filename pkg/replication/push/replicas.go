package push

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
)

// replicas accesses the replicas of one resource on the cache server.
type replicas struct {
	*shared

	resource replication.Resource
	// source is set if the replicas are relayed from another cache server.
	source *source
}

// name is the name of the resource in logs and checkpoints, and in gauges that are deleted with the mirror.
func (r *replicas) name() string { return r.resource.GroupResource().String() }

// counted is the name of the resource in metrics that are never deleted: one for all CachedResources of tenants.
func (r *replicas) counted() string {
	if strings.Contains(r.resource.Resource, ":") {
		return cachedResources
	}
	return r.name()
}

// apply returns the written replica, or nil after a deletion. It returns a conflict for an unexpected replica.
func (r *replicas) apply(ctx context.Context, key client.Key, todo replication.Action, obj *unstructured.Unstructured) (written *unstructured.Unstructured, err error) {
	defer func() {
		r.config.metrics.operations.WithLabelValues(r.config.CacheName, r.counted(), string(todo), result(err)).Inc()
	}()
	clients, err := r.config.replicas().Cluster(key.Cluster.Path()).Dynamic()
	if err != nil {
		return nil, err
	}
	to := clients.Resource(r.resource.GroupVersionResource).Namespace(key.Namespace)
	switch todo {
	case replication.ActionCreate:
		written, err = to.Create(ctx, obj, metav1.CreateOptions{FieldManager: Name})
	case replication.ActionUpdate:
		written, err = to.Update(ctx, obj, metav1.UpdateOptions{FieldManager: Name})
	case replication.ActionDelete:
		// The object may exist again by now, and its replica, too.
		version := obj.GetResourceVersion()
		err = to.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // already deleted
		}
	case replication.ActionNone:
	}
	if apierrors.IsAlreadyExists(err) || isObjectNotFound(err, key.Name) {
		return nil, apierrors.NewConflict(r.resource.GroupResource(), key.String(), err)
	}
	if err != nil && !apierrors.IsConflict(err) {
		return nil, fmt.Errorf("cannot %s the replica of %s %s: %w", todo, r.resource.GroupResource(), key, err)
	}
	return written, err
}

// removeAll deletes all replicas and returns their number. If the cache server does not serve the resource, it has none.
func (r *replicas) removeAll(ctx context.Context) (int, error) {
	var remaining []*unstructured.Unstructured
	err := replication.EachObject(ctx, r.config.replicas().Wildcard(), r.resource, func(obj *unstructured.Unstructured) { remaining = append(remaining, obj) })
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	for _, replica := range remaining {
		todo, obj := replication.Decide(r.resource, nil, replica)
		if _, err := r.apply(ctx, client.KeyOf(replica), todo, obj); err != nil && !apierrors.IsConflict(err) {
			return len(remaining), err
		}
	}
	return len(remaining), nil
}

func (r *replicas) deleteMetrics() {
	labels := map[string]string{"cache": r.config.CacheName, "resource": r.name()}
	if r.counted() == r.name() {
		r.config.metrics.lag.DeletePartialMatch(labels)
	}
	r.config.metrics.objects.Delete(labels)
	r.config.metrics.pending.Delete(labels)
}
