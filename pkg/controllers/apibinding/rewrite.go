package apibinding

import (
	"context"
	"errors"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/shardplane/shardplane/pkg/client"
)

// rewrite leads a binding that has bound something to what its export offers now, and
// reports whether it did: where no more changes than what its status says of that, one
// write does, without reading the binding first. An export may have thousands.
func (r *reconciler) rewrite(ctx context.Context, key client.Key) (bool, error) {
	known, err := r.known(key)
	if err != nil || known.DeletionTimestamp != nil || known.Status.Phase != apisv1alpha2.APIBindingPhaseBound {
		return false, ignoreNotFound(err)
	}
	p, done, err := r.planAlone(ctx, key, known)
	if err != nil {
		return false, err
	}
	defer done()
	if p.problem != nil || p.export == nil {
		return false, nil
	}
	switch _, noted, err := r.noted(key.Cluster, key.Name, p.wanted); {
	case errors.Is(err, errTooMany):
		return false, nil
	case err != nil || noted != nil:
		return false, ignoreNotFound(err)
	}
	if len(p.added) > 0 {
		release, conflict, err := r.apis.Reserve(ctx, key.Cluster, key.Name, p.added)
		if err != nil || conflict != "" {
			return false, err
		}
		defer release()
	}
	written, err := r.apis.Rewrite(ctx, key, func(stored *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
		if stored.UID != known.UID || stored.DeletionTimestamp != nil {
			return nil
		}
		if !equality.Semantic.DeepEqual(stored.Status.BoundResources, known.Status.BoundResources) {
			return nil // the names to reserve and the schemas to compare may be others
		}
		return advance(stored, p.provider, p.export, p.offer, p.wanted)
	})
	if err != nil || written == nil {
		return false, ignoreNotFound(err)
	}
	r.waiting.set(key, false)
	return true, r.apis.WaitFor(ctx, written)
}
