// Package customresourcedefinition completes asynchronous operations on CustomResourceDefinitions. If a definition is
// being deleted, it deletes the instances and removes the finalizer. It also rewrites definitions that wait for
// released names, or lack the condition for non-structural schemas, because a write updates both.
package customresourcedefinition

import (
	"context"
	"errors"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Name is the name of the controller.
const Name = "custom-resource-definitions"

const (
	// workers is low because deleting the instances of a definition is expensive.
	workers    = 2
	minBackoff = 50 * time.Millisecond
	// timeout limits one attempt to delete the instances of a definition.
	timeout = 10 * time.Minute
)

// Definitions gives access to all definitions of the shard, without keeping them in memory as an informer does.
type Definitions interface {
	// Follow calls f with definitions to reconcile: existing ones before it returns, later ones until stop is called.
	Follow(f func(cluster logicalcluster.Name, name string)) (stop func())
	// Get returns a definition, which must not be modified.
	Get(ctx context.Context, cluster logicalcluster.Name, name string) (*apiextensions.CustomResourceDefinition, error)
	// Update changes the status or the finalizers of a definition, unless change returns false or the definition was deleted.
	Update(ctx context.Context, cluster logicalcluster.Name, name string, change func(*apiextensions.CustomResourceDefinition) bool) error
	// DeleteInstances deletes the instances of an established definition, and reports whether some remain with finalizers.
	DeleteInstances(ctx context.Context, cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) (remaining bool, err error)
}

// NewCRDController returns the controller.
func NewCRDController(definitions Definitions) *reconcile.Controller[client.Key] {
	r := &definitionReconciler{definitions}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile, Workers: workers, MinBackoff: minBackoff, Timeout: timeout,
		Sources: []reconcile.Source[client.Key]{func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
			return definitions.Follow(func(cluster logicalcluster.Name, name string) {
				queue.Add(client.Key{Cluster: cluster, Name: name})
			}), nil
		}},
	})
}

type definitionReconciler struct{ definitions Definitions }

func (r *definitionReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	crd, err := r.definitions.Get(ctx, key.Cluster, key.Name)
	switch {
	case err != nil:
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	case crd.DeletionTimestamp.IsZero():
		// A write without changes updates the names and conditions.
		return reconcile.Result{}, r.definitions.Update(ctx, key.Cluster, key.Name, func(*apiextensions.CustomResourceDefinition) bool { return true })
	case !apiextensions.CRDHasFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer):
		return reconcile.Result{}, nil
	default:
		return r.cleanUp(ctx, key, crd)
	}
}

func (r *definitionReconciler) cleanUp(ctx context.Context, key client.Key, crd *apiextensions.CustomResourceDefinition) (reconcile.Result, error) {
	reason, message := "NeverEstablished", "resource was never established"
	if apiextensions.IsCRDConditionTrue(crd, apiextensions.Established) {
		remaining, err := r.definitions.DeleteInstances(ctx, key.Cluster, crd)
		switch {
		case err != nil:
			return reconcile.Result{}, errors.Join(err, r.progress(ctx, key, "InstanceDeletionFailed", err.Error()))
		case remaining:
			err := r.progress(ctx, key, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
			return reconcile.Result{Backoff: true}, err
		}
		reason, message = "InstanceDeletionCompleted", "removed all instances"
	}
	return reconcile.Result{}, r.definitions.Update(ctx, key.Cluster, key.Name, func(crd *apiextensions.CustomResourceDefinition) bool {
		if crd.DeletionTimestamp.IsZero() || !apiextensions.CRDHasFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer) {
			return false
		}
		setTerminating(crd, apiextensions.ConditionFalse, reason, message)
		apiextensions.CRDRemoveFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer)
		return true
	})
}

func (r *definitionReconciler) progress(ctx context.Context, key client.Key, reason, message string) error {
	return r.definitions.Update(ctx, key.Cluster, key.Name, func(crd *apiextensions.CustomResourceDefinition) bool {
		setTerminating(crd, apiextensions.ConditionTrue, reason, message)
		return true
	})
}

func setTerminating(crd *apiextensions.CustomResourceDefinition, status apiextensions.ConditionStatus, reason, message string) {
	apiextensions.SetCRDCondition(crd, apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.Terminating, Status: status, Reason: reason, Message: message,
	})
}
