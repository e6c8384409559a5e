// Package customresourcedefinition finishes what requests begin with
// CustomResourceDefinitions: it deletes the instances of those that are being
// deleted, and takes the finalizer off them; and it writes those again that want
// names which may have become free, or do not say that their schemas are not
// structural, since a write sets both.
package customresourcedefinition

import (
	"context"
	"errors"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Name is the name of the controller.
const Name = "custom-resource-definitions"

const (
	// workers is few: deleting the instances of one definition is much work.
	workers    = 2
	minBackoff = 50 * time.Millisecond
	// timeout is for deleting the instances of one definition; what is left then
	// is for the next attempt.
	timeout = 10 * time.Minute
)

// Definitions are those of all logical clusters of the shard, as its server of
// custom resources has them. An informer would hold every definition decoded;
// this holds none.
type Definitions interface {
	// Follow calls f with the definitions that need something, those that there
	// are before it returns, and those to come until stop is called.
	Follow(f func(cluster logicalcluster.Name, name string)) (stop func())
	// Get returns a definition, which must not be changed.
	Get(ctx context.Context, cluster logicalcluster.Name, name string) (*apiextensions.CustomResourceDefinition, error)
	// Update changes the status of a definition, or its finalizers, with change,
	// unless that returns false or the definition is gone.
	Update(ctx context.Context, cluster logicalcluster.Name, name string, change func(*apiextensions.CustomResourceDefinition) bool) error
	// DeleteInstances deletes the instances of an established definition, and
	// reports whether some are left, which wait for their finalizers.
	DeleteInstances(ctx context.Context, cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) (left bool, err error)
}

// New returns the controller.
func New(definitions Definitions) *reconcile.Controller[client.Key] {
	r := &reconciler{definitions}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:       Name,
		Reconcile:  r.reconcile,
		Workers:    workers,
		MinBackoff: minBackoff,
		Timeout:    timeout,
		Sources: []reconcile.Source[client.Key]{func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
			return definitions.Follow(func(cluster logicalcluster.Name, name string) {
				queue.Add(client.Key{Cluster: cluster, Name: name})
			}), nil
		}},
	})
}

type reconciler struct {
	definitions Definitions
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	crd, err := r.definitions.Get(ctx, key.Cluster, key.Name)
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case crd.DeletionTimestamp.IsZero():
		// A write without a change decides on the names, and what the conditions say.
		return reconcile.Result{}, r.definitions.Update(ctx, key.Cluster, key.Name, func(*apiextensions.CustomResourceDefinition) bool { return true })
	case !apiextensions.CRDHasFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer):
		return reconcile.Result{}, nil
	default:
		return r.cleanUp(ctx, key, crd)
	}
}

// cleanUp deletes the instances of a definition, and once they are gone, takes
// the finalizer off it.
func (r *reconciler) cleanUp(ctx context.Context, key client.Key, crd *apiextensions.CustomResourceDefinition) (reconcile.Result, error) {
	reason, message := "NeverEstablished", "resource was never established"
	if apiextensions.IsCRDConditionTrue(crd, apiextensions.Established) {
		left, err := r.definitions.DeleteInstances(ctx, key.Cluster, crd)
		switch {
		case err != nil:
			return reconcile.Result{}, errors.Join(err, r.progress(ctx, key, "InstanceDeletionFailed", err.Error()))
		case left:
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

// progress says in the definition's status how the deletion goes.
func (r *reconciler) progress(ctx context.Context, key client.Key, reason, message string) error {
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
