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

// release removes the finalizer of a deleted binding after the bound objects have been deleted.
func (r *bindingReconciler) release(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding) (reconcile.Result, error) {
	if !hasFinalizer(binding) {
		return reconcile.Result{}, nil
	}
	remainder, err := r.empty(ctx, key, binding)
	if err != nil || len(remainder) > 0 {
		_, commitErr := r.commit(ctx, binding, remaining(binding, remainder, err))
		return reconcile.Result{Backoff: err == nil}, errors.Join(err, reconcile.IgnoreNotFound(commitErr))
	}
	// A LogicalCluster that is being deleted needs no update.
	if !r.isDeleted(key.Cluster) {
		if err := reconcile.IgnoreNotFound(r.record(ctx, key.Cluster, key.Name, nil)); err != nil {
			return reconcile.Result{}, err
		}
	}
	_, err = r.commit(ctx, binding, released(binding))
	return reconcile.Result{}, reconcile.IgnoreNotFound(err)
}

// empty deletes the objects of bound resources that no other binding takes over. It includes resources that the binding was
// about to take over, because the previous binding may have left their objects.
func (r *bindingReconciler) empty(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding) ([]remainder, error) {
	awaited, err := r.awaited(ctx, key.Cluster, binding)
	if errors.Is(err, client.ErrIncomplete) && r.isDeleted(key.Cluster) {
		err = nil // unserved objects are deleted with the logical cluster
	}
	if err != nil {
		return nil, err
	}
	var all []remainder
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
			all = append(all, remainder{resource: bound.Resource + "." + bound.Group, objects: objects, finalizers: finalizers})
		}
	}
	return all, errors.Join(errs...)
}

// awaited returns the resources of the export that are not bound yet and have existing schemas. It copies the schemas, which
// are needed for deleting objects.
func (r *bindingReconciler) awaited(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) ([]apisv1alpha2.BoundAPIResource, error) {
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

// unlessUpToDate drops the error of looking up the export if the binding had bound all of its resources.
func unlessUpToDate(binding *apisv1alpha2.APIBinding, err error) error {
	if conditions.IsTrue(binding, apisv1alpha2.BindingUpToDate) {
		return nil
	}
	return err
}

// isTakenOver reports whether another binding in the logical cluster has bound the resource with the same identity, or will
// bind the same schema when the names are released. If this cannot be determined, nothing may be deleted.
func (r *bindingReconciler) isTakenOver(key client.Key, bound *apisv1alpha2.BoundAPIResource) (bool, error) {
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

// offersSame reports whether the export of a binding contains the bound resource with the same schema and identity.
func (r *bindingReconciler) offersSame(cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding, bound *apisv1alpha2.BoundAPIResource) (bool, error) {
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
			return false, reconcile.IgnoreNotFound(err)
		}
		return string(schema.UID) == bound.Schema.UID, nil
	}
	return false, nil
}
