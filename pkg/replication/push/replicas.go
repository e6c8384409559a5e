package push

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
)

// replicas are those of one resource on the cache server.
type replicas struct {
	config   Config
	resource replication.Resource
}

// name is that of the resource in logs and marks, and in gauges, which end with it.
func (r *replicas) name() string { return r.resource.GroupResource().String() }

// counted is what the resource is counted as by what stays as long as the process: tenants name the
// resources of their cached resources, which are one there.
func (r *replicas) counted() string {
	if strings.Contains(r.resource.Resource, ":") {
		return cachedResources
	}
	return r.name()
}

// apply does what was decided, and counts it.
func (r *replicas) apply(ctx context.Context, key client.Key, todo replication.Action, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	written, err := r.write(ctx, key, todo, obj)
	r.config.metrics.operations.WithLabelValues(r.config.CacheName, r.counted(), string(todo), result(err)).Inc()
	return written, err
}

// write writes to the cache server, and returns the replica as it is then, unless it is gone. Where
// the replica is not what it was taken for, the error is a conflict.
func (r *replicas) write(ctx context.Context, key client.Key, todo replication.Action, obj *unstructured.Unstructured) (written *unstructured.Unstructured, err error) {
	to, err := r.replicaClient(key)
	if err != nil {
		return nil, err
	}
	switch todo {
	case replication.ActionCreate:
		written, err = to.Create(ctx, obj, metav1.CreateOptions{FieldManager: Name})
	case replication.ActionUpdate:
		written, err = to.Update(ctx, obj, metav1.UpdateOptions{FieldManager: Name})
	case replication.ActionDelete:
		// Only what was compared: by now the object may be back, and so its replica.
		version := obj.GetResourceVersion()
		err = to.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // there is none, as it should be
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

func (r *replicas) replicaClient(key client.Key) (dynamic.ResourceInterface, error) {
	clients, err := r.config.replicas().Cluster(key.Cluster.Path()).Dynamic()
	if err != nil {
		return nil, err
	}
	return clients.Resource(r.resource.GroupVersionResource).Namespace(key.Namespace), nil
}

// isObjectNotFound tells a missing object from a resource that the server does
// not serve at all.
func isObjectNotFound(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name
}

// removeAll deletes what there is, and returns how many replicas that were. Where
// the cache server does not serve the resource, there is nothing to delete.
func (r *replicas) removeAll(ctx context.Context) (int, error) {
	var left []*unstructured.Unstructured
	err := replication.EachObject(ctx, r.config.replicas().Wildcard(), r.resource, func(obj *unstructured.Unstructured) { left = append(left, obj) })
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	for _, replica := range left {
		todo, obj := replication.Decide(r.resource, nil, replica)
		if _, err := r.apply(ctx, client.KeyOf(replica), todo, obj); err != nil && !apierrors.IsConflict(err) {
			return len(left), err
		}
	}
	return len(left), nil
}

// deleteMetrics takes back the gauges of a resource that is not replicated to a cache server any more.
func (r *replicas) deleteMetrics() {
	if r.counted() == r.name() {
		for _, until := range []string{untilAcknowledged, untilMarked} {
			r.config.metrics.lag.Delete(map[string]string{"cache": r.config.CacheName, "resource": r.name(), "until": until})
		}
	}
	labels := map[string]string{"cache": r.config.CacheName, "resource": r.name()}
	r.config.metrics.objects.Delete(labels)
	r.config.metrics.pending.Delete(labels)
}
