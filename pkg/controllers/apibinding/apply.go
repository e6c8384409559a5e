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

// apply carries out a plan for a binding as the informer has it. What prevents that becomes the problem of the plan.
func (r *reconciler) apply(ctx context.Context, key client.Key, known *apisv1alpha2.APIBinding, p *plan) (reconcile.Result, error) {
	done, err := r.prepare(ctx, known, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	defer done()
	r.roomless.set(key, p.problem != nil && p.problem.noRoom)
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
	// Before it is written: whoever gives the names back finds the binding.
	r.waiting.set(key, conflict != "")
	result, err := r.noteIn(ctx, key, known, p)
	if err != nil {
		return result, err
	}
	written, err := r.write(ctx, key, known, p)
	switch {
	case err != nil:
		return reconcile.Result{}, ignoreNotFound(err)
	case written == nil:
		return reconcile.Result{Backoff: true}, nil
	case conflict != "" && r.conflictIsOver(ctx, key, known, p):
		return reconcile.Result{}, errors.New("names became free in the meantime")
	case written == known:
		return result, r.apis.Yield(ctx, key) // also what was bound before this replica led
	}
	return result, r.apis.WaitFor(ctx, written)
}

// prepare makes copies of the schemas that a plan binds, and checks that they can replace what is bound. Until done is
// called, no other binding gets another schema than this one for the same resource and identity: each would only be
// compared with the schemas that were bound before.
func (r *reconciler) prepare(ctx context.Context, known *apisv1alpha2.APIBinding, p *plan) (done func(), err error) {
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

// copySchemas makes copies of the schemas that a plan binds, and notes in which versions objects are stored.
func (r *reconciler) copySchemas(ctx context.Context, p *plan) error {
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

// checkReplacements notes in a plan if the binding must not get a schema, because objects that are stored already
// could not be read with it. The binding keeps all that it has then.
func (r *reconciler) checkReplacements(ctx context.Context, known *apisv1alpha2.APIBinding, p *plan) error {
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

// reserve keeps the names for a binding that it does not have yet.
func (r *reconciler) reserve(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding, p *plan) (release func(), conflict string, err error) {
	return reserve(ctx, r.apis, r.siblings, names{cluster: key.Cluster, binding: binding, provider: p.provider, resources: p.wanted, schemas: p.added})
}

// conflictIsOver looks once more whether names are in use: they may have become free
// before the binding was known to wait for them.
func (r *reconciler) conflictIsOver(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding, p *plan) bool {
	release, conflict, err := r.reserve(ctx, key, binding, p)
	if err != nil || conflict != "" {
		return false
	}
	release()
	return true
}

// noteIn notes in the LogicalCluster what a binding is about to have bound. A new LogicalCluster gets the note of its
// default bindings from its own controller, a moment after they were made.
func (r *reconciler) noteIn(ctx context.Context, key client.Key, known *apisv1alpha2.APIBinding, p *plan) (reconcile.Result, error) {
	if p.problem != nil {
		return reconcile.Result{}, nil
	}
	lc, noted, err := r.noted(key.Cluster, key.Name, p.wanted)
	switch {
	case err == nil && noted == nil:
		return reconcile.Result{}, nil
	case err == nil && r.isStarting(lc) && equality.Semantic.DeepEqual(known, p.advance(known)):
		return reconcile.Result{RequeueAfter: startTime}, nil
	}
	switch err := r.note(ctx, key.Cluster, key.Name, p.wanted); {
	case errors.Is(err, errTooMany):
		p.problem = tooMany()
		r.waiting.set(key, true) // it can when another one goes
	case apierrors.IsNotFound(err):
		p.problem = noLogicalCluster()
		return reconcile.Result{Backoff: true}, nil // nothing tells when it is known
	case err != nil:
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

// write writes what a plan has come to, and returns the binding as change does. If the binding has bound something and
// no more changes than what its status says of that, one write does, without reading the binding first. An export may have
// thousands.
func (r *reconciler) write(ctx context.Context, key client.Key, known *apisv1alpha2.APIBinding, p *plan) (*apisv1alpha2.APIBinding, error) {
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
			return nil // the names to reserve and the schemas to compare may be others
		}
		return p.advance(stored)
	})
	if written != nil || err != nil {
		return written, err
	}
	return r.change(ctx, key, known, p.advance)
}
