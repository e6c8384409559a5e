package apibinding

import (
	"context"
	"errors"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// release lets a binding go that is being deleted, once nothing is left of what it has
// bound.
func (r *reconciler) release(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding) (reconcile.Result, error) {
	if !hasFinalizer(binding) {
		return reconcile.Result{}, nil
	}
	left, err := r.empty(ctx, key, binding)
	if err != nil || len(left) > 0 {
		_, commitErr := r.commit(ctx, binding, remaining(binding, left, err))
		return reconcile.Result{Backoff: err == nil}, errors.Join(err, ignoreNotFound(commitErr))
	}
	// A LogicalCluster that goes with it need not say so.
	if !r.isGoing(key.Cluster) {
		if err := ignoreNotFound(r.note(ctx, key.Cluster, key.Name, nil)); err != nil {
			return reconcile.Result{}, err
		}
	}
	_, err = r.commit(ctx, binding, released(binding))
	return reconcile.Result{}, ignoreNotFound(err)
}

// empty deletes what a binding has bound, but for what another one takes over, and what it was to
// take over itself: who had bound that may have left it.
func (r *reconciler) empty(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding) ([]left, error) {
	awaited, err := r.awaited(ctx, key.Cluster, binding)
	if errors.Is(err, client.ErrIncomplete) && r.isGoing(key.Cluster) {
		err = nil // the logical cluster takes what nobody serves
	}
	if err != nil {
		return nil, err
	}
	var all []left
	var errs []error
	resources := slices.Concat(binding.Status.BoundResources, awaited)
	for i := range resources {
		bound := &resources[i]
		taken, err := r.isTakenOver(key, bound)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if taken {
			continue
		}
		objects, finalizers, err := r.apis.Empty(ctx, key.Cluster, bound)
		if err != nil {
			errs = append(errs, err)
		}
		if objects > 0 {
			all = append(all, left{resource: bound.Resource + "." + bound.Group, objects: objects, finalizers: finalizers})
		}
	}
	return all, errors.Join(errs...)
}

// awaited returns what the export of a binding offers that it has yet to bind, as far as there are
// schemas, of which it makes copies: nothing can be deleted without.
func (r *reconciler) awaited(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) ([]apisv1alpha2.BoundAPIResource, error) {
	provider, err := providerOf(cluster, binding, r.resolve)
	if err != nil {
		return nil, unlessUpToDate(binding, err)
	}
	export, err := r.exportOf(provider, binding)
	if err != nil || export == nil || export.Status.IdentityHash == "" {
		return nil, unlessUpToDate(binding, err)
	}
	var all []apisv1alpha2.BoundAPIResource
	for i := range export.Spec.Resources {
		resource := &export.Spec.Resources[i]
		if boundAs(binding, resource.Group, resource.Name) != nil {
			continue
		}
		schema, err := r.schema(schemaKey(provider, resource.Schema))
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		next := resourceOf(export, resource, schema)
		version, problem, err := r.copySchema(ctx, keyOf(provider, schema), &next, export.Name)
		if err != nil {
			return nil, err
		}
		if problem != nil {
			continue
		}
		if resource.Storage.Virtual == nil {
			next.StorageVersions = []string{version}
		}
		all = append(all, next)
	}
	return all, nil
}

// unlessUpToDate is the error of looking up the export of a binding, which had bound all of it
// when that was known.
func unlessUpToDate(binding *apisv1alpha2.APIBinding, err error) error {
	if conditions.IsTrue(binding, apisv1alpha2.BindingUpToDate) {
		return nil
	}
	return err
}

// isTakenOver reports whether another binding of the logical cluster has bound the resource under
// the same identity, or binds the same schema under it as soon as the names are free. As long as
// that cannot be told, nothing may be deleted.
func (r *reconciler) isTakenOver(key client.Key, bound *apisv1alpha2.BoundAPIResource) (bool, error) {
	for _, other := range r.siblings(key.Cluster) {
		if other.Name == key.Name || other.DeletionTimestamp != nil {
			continue
		}
		if has := boundAs(other, bound.Group, bound.Resource); has != nil && has.Schema.IdentityHash == bound.Schema.IdentityHash {
			return true, nil
		}
		if takes, err := r.offersSame(key.Cluster, other, bound); takes || err != nil {
			return takes, err
		}
	}
	return false, nil
}

// offersSame reports whether the export of a binding offers what is bound, with the same schema
// under the same identity.
func (r *reconciler) offersSame(cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding, bound *apisv1alpha2.BoundAPIResource) (bool, error) {
	provider, err := providerOf(cluster, binding, r.resolve)
	if err != nil {
		return false, err
	}
	export, err := r.exportOf(provider, binding)
	if err != nil || export == nil || export.Status.IdentityHash != bound.Schema.IdentityHash {
		return false, err
	}
	for i := range export.Spec.Resources {
		resource := &export.Spec.Resources[i]
		if resource.Group != bound.Group || resource.Name != bound.Resource {
			continue
		}
		schema, err := r.schema(schemaKey(provider, resource.Schema))
		if err != nil {
			return false, ignoreNotFound(err)
		}
		return string(schema.UID) == bound.Schema.UID, nil
	}
	return false, nil
}
