package apibinding

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
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
	r.overCapacity.set(key, p.problem != nil && p.problem.overCapacity)
	conflict := ""
	if p.problem == nil && len(p.added) > 0 {
		var release func()
		if release, conflict, err = r.reserve(ctx, key, known, p); err != nil {
			return reconcile.Result{}, err
		}
		if conflict == "" {
			defer release()
		} else {
			p.problem = namingConflict(conflict)
		}
	}
	// This must precede the write, so that the binding is notified if the names are released in between.
	r.waiting.set(key, conflict != "")
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
	case conflict != "" && r.conflictIsOver(ctx, key, known, p):
		return reconcile.Result{}, errors.New("names were released concurrently")
	case written == known:
		return result, r.apis.Yield(ctx, key) // also for resources that were bound before this replica became leader
	}
	return result, r.apis.WaitFor(ctx, written)
}

// prepare copies the schemas of a plan and checks that they can replace the bound ones. Until done is called, other bindings cannot
// bind different schemas for the same resource and identity, because each of them would be compared only with the schemas that
// were bound before.
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

// checkReplacements sets the problem of a plan if stored objects could not be read with a new schema. Then the binding does not
// change.
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

// reserve reserves the names of the resources that are not bound yet.
func (r *bindingReconciler) reserve(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding, p *plan) (release func(), conflict string, err error) {
	return reserve(ctx, r.apis, r.siblings, names{cluster: key.Cluster, binding: binding, provider: p.provider, resources: p.wanted, schemas: p.added})
}

// conflictIsOver checks again whether names are in use, because they may have been released before the binding was recorded as
// waiting.
func (r *bindingReconciler) conflictIsOver(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding, p *plan) bool {
	release, conflict, err := r.reserve(ctx, key, binding, p)
	if err != nil || conflict != "" {
		return false
	}
	release()
	return true
}

// recordPlan records the resources of a plan in the LogicalCluster. For the default bindings of a new LogicalCluster, its own
// controller does this shortly afterwards.
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
		p.problem = tooMany()
		r.waiting.set(key, true) // retried when another binding is deleted
	case apierrors.IsNotFound(err):
		p.problem = noLogicalCluster()
		return reconcile.Result{Backoff: true}, nil // no event reports when it is observed
	case err != nil:
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

// write writes the result of a plan and returns the binding as change does. If the binding is bound and only its status changes, it
// uses a single write without reading the binding first, because an export may have thousands of bindings.
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
