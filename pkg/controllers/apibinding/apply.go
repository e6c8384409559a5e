package apibinding

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// apply carries out a plan for a cached binding. Failures that the user can fix become the problem of the plan.
func (r *bindingReconciler) apply(ctx context.Context, key client.Key, known *apisv1alpha2.APIBinding, p *plan) (reconcile.Result, error) {
	done, err := r.prepare(ctx, known, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	defer done()
	wait(&r.overCapacity, key, capacity, p.problem != nil && p.problem.overCapacity)
	conflict := ""
	if p.problem == nil && len(p.added) > 0 {
		var release func()
		if release, conflict, err = reserve(ctx, r.apis, r.siblings, key.Cluster, known, p); err != nil {
			return reconcile.Result{}, err
		}
		if conflict == "" {
			defer release()
		} else {
			p.problem = notBindable(apisv1alpha2.NamingConflictsReason, "%s: delete it, or this binding. The resource is bound when the name is released", conflict)
		}
	}
	// This must precede the write, so that the binding is notified if the names are released in between.
	wait(&r.waiting, key, key.Cluster.String(), conflict != "")
	result, err := r.recordPlan(ctx, key, known, p)
	if err != nil {
		return result, err
	}
	written, err := r.write(ctx, key, known, p)
	switch {
	case err != nil:
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	case written == nil:
		return reconcile.Result{Backoff: true}, nil
	case conflict != "" && r.retryReserve(ctx, key, known, p):
		return reconcile.Result{}, errors.New("names were released concurrently")
	case written == known:
		return result, r.apis.Yield(ctx, key) // also for resources that were bound before this replica became leader
	}
	return result, r.apis.WaitFor(ctx, written)
}

// prepare copies the schemas of a plan and checks that they can replace the bound ones. Until done is called, no other
// schema can be bound for the same resource and identity, because it would not be compared with these schemas.
func (r *bindingReconciler) prepare(ctx context.Context, known *apisv1alpha2.APIBinding, p *plan) (done func(), err error) {
	if err := r.copySchemas(ctx, p); err != nil || p.problem != nil {
		return func() {}, err
	}
	if done, err = r.replacing.start(ctx, p.replaced()); err != nil {
		return nil, err
	}
	if err := r.checkReplacements(ctx, known, p); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// copySchemas copies the schemas of a plan to the shard and records the storage versions.
func (r *bindingReconciler) copySchemas(ctx context.Context, p *plan) error {
	for _, o := range p.offered {
		if p.problem != nil {
			return nil
		}
		resource := &p.wanted[o.at]
		version, problem, err := r.copySchema(ctx, o.schema, resource, p.export.Name)
		if err != nil {
			return err
		}
		p.problem = problem
		if problem == nil && o.isStored && !slices.Contains(resource.StorageVersions, version) {
			resource.StorageVersions = append(resource.StorageVersions, version)
		}
	}
	return nil
}

// checkReplacements sets the problem of a plan if stored objects could not be read with a new schema.
func (r *bindingReconciler) checkReplacements(ctx context.Context, known *apisv1alpha2.APIBinding, p *plan) error {
	next := p.replaced()
	for i := range next {
		err := r.apis.CheckReplacement(ctx, boundAs(known, next[i].Group, next[i].Resource), &next[i])
		if errors.Is(err, apis.ErrInvalidSchema) {
			p.problem = invalidSchema(next[i].Schema.Name, err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("comparing the APIResourceSchema %s: %w", next[i].Schema.Name, err)
		}
	}
	return nil
}

// retryReserve reserves the names again, and releases them if it succeeds. They may have been released before the
// binding was recorded as waiting.
func (r *bindingReconciler) retryReserve(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding, p *plan) (succeeded bool) {
	release, conflict, err := reserve(ctx, r.apis, r.siblings, key.Cluster, binding, p)
	if err != nil || conflict != "" {
		return false
	}
	release()
	return true
}

// recordPlan records the resources in the LogicalCluster. A new LogicalCluster soon records its default bindings itself.
func (r *bindingReconciler) recordPlan(ctx context.Context, key client.Key, known *apisv1alpha2.APIBinding, p *plan) (reconcile.Result, error) {
	if p.problem != nil {
		return reconcile.Result{}, nil
	}
	lc, recorded, err := r.recorded(key.Cluster, key.Name, p.wanted)
	switch {
	case err == nil && recorded == nil:
		return reconcile.Result{}, nil
	case err == nil && r.isStarting(lc) && equality.Semantic.DeepEqual(known, p.advance(known)):
		return reconcile.Result{RequeueAfter: startTime}, nil
	}
	switch err := r.record(ctx, key.Cluster, key.Name, p.wanted); {
	case errors.Is(err, errTooMany):
		p.problem = notBindable(apisv1alpha2.InternalErrorReason,
			"The annotation %s of the LogicalCluster, which records the bound resources, would have more than %d bytes: delete other bindings", locksAnnotation, maxLocksBytes)
		r.waiting.Remember(key, key.Cluster.String()) // retried when another binding is deleted
	case apierrors.IsNotFound(err):
		p.problem = notBindable(apisv1alpha2.LogicalClusterNotFoundReason,
			"The LogicalCluster was not found: if it was just created, binding is retried, otherwise it is being deleted with this binding")
		return reconcile.Result{Backoff: true}, nil // no event reports when it is observed
	case err != nil:
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

// write writes the result of a plan and returns the binding as change does. If only the status of a bound binding
// changes, it uses a single write and does not read the binding first. An export may have thousands of bindings.
func (r *bindingReconciler) write(ctx context.Context, key client.Key, known *apisv1alpha2.APIBinding, p *plan) (*apisv1alpha2.APIBinding, error) {
	if equality.Semantic.DeepEqual(known, p.advance(known)) {
		return known, nil
	}
	if p.problem != nil || known.Status.Phase != apisv1alpha2.APIBindingPhaseBound {
		return r.change(ctx, key, known, p.advance)
	}
	written, err := r.apis.Rewrite(ctx, key, func(stored *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
		if stored.UID != known.UID || stored.DeletionTimestamp != nil {
			return nil
		}
		if !equality.Semantic.DeepEqual(stored.Status.BoundResources, known.Status.BoundResources) {
			return nil // names and schemas must be checked again
		}
		return p.advance(stored)
	})
	if written != nil || err != nil {
		return written, err
	}
	return r.change(ctx, key, known, p.advance)
}

// release removes the finalizer of a deleted binding after the bound objects have been deleted.
func (r *bindingReconciler) release(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding) (reconcile.Result, error) {
	if !slices.Contains(binding.Finalizers, apis.BindingFinalizer) {
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
	released := binding.DeepCopy()
	released.Finalizers = slices.DeleteFunc(released.Finalizers, func(f string) bool { return f == apis.BindingFinalizer })
	_, err = r.commit(ctx, binding, released)
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
		if err != nil || taken {
			errs = append(errs, err)
			continue
		}
		objects, finalizers, err := r.apis.Empty(ctx, key.Cluster, bound)
		errs = append(errs, err)
		if objects > 0 {
			all = append(all, remainder{resource: bound.Resource + "." + bound.Group, objects: objects, finalizers: finalizers})
		}
	}
	return all, errors.Join(errs...)
}

// awaited returns the resources that are not bound yet. It copies the schemas, which are needed for deleting objects.
func (r *bindingReconciler) awaited(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) ([]apisv1alpha2.BoundAPIResource, error) {
	provider, export, err := r.exportOf(cluster, binding)
	if conditions.IsTrue(binding, apisv1alpha2.BindingUpToDate) && export == nil {
		return nil, nil // it has bound all resources
	}
	if err != nil || export == nil || export.Status.IdentityHash == "" {
		return nil, err
	}
	var all []apisv1alpha2.BoundAPIResource
	for i := range export.Spec.Resources {
		resource := &export.Spec.Resources[i]
		if boundAs(binding, resource.Group, resource.Name) != nil {
			continue
		}
		schema, err := r.schema(client.Key{Cluster: provider, Name: resource.Schema})
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

// isTakenOver reports whether another binding has bound the resource with the same identity, or will bind the same
// schema. If this cannot be determined, nothing may be deleted.
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
	provider, export, err := r.exportOf(cluster, binding)
	if err != nil || export == nil || export.Status.IdentityHash != bound.Schema.IdentityHash {
		return false, err
	}
	for i := range export.Spec.Resources {
		resource := &export.Spec.Resources[i]
		if resource.Group != bound.Group || resource.Name != bound.Resource {
			continue
		}
		schema, err := r.schema(client.Key{Cluster: provider, Name: resource.Schema})
		if err != nil {
			return false, reconcile.IgnoreNotFound(err)
		}
		return string(schema.UID) == bound.Schema.UID, nil
	}
	return false, nil
}
