package garbagecollector

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/storage"
)

// errUnserved says that an object cannot be written, since nothing serves it.
var errUnserved = errors.New("nothing serves the object")

// collect does with an object what follows from its references, or, if it is being deleted, with
// its dependents.
func (c *collector) collect(ctx context.Context, item Item) (reconcile.Result, error) {
	o, err := c.backend.get(ctx, item)
	if err != nil {
		return reconcile.Result{}, err
	}
	var result reconcile.Result
	switch {
	case o.uid == "":
	case o.orphans():
		err = c.orphan(ctx, item, o)
	case o.waits():
		err = c.finish(ctx, item, o)
	case o.deleting:
	case len(o.references) > 0 && !unowned(item):
		result, err = c.own(ctx, item, o)
	}
	switch {
	case errors.Is(err, errUnserved):
		c.parked.add(item)
		err = nil
	case apierrors.IsNotFound(err):
		err = nil // somebody else was quicker
	case errors.Is(err, errBusy):
		return reconcile.Result{Backoff: true}, nil
	}
	return result, err
}

// own judges an object and does what follows.
func (c *collector) own(ctx context.Context, item Item, o object) (reconcile.Result, error) {
	added := c.graph.isAdded(item)
	v, err := c.judge(ctx, item, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	if v.unserved {
		c.parked.add(item)
	}
	if v.remove == "" && len(v.drop) == 0 && len(v.invalid) == 0 {
		return reconcile.Result{}, nil
	}
	if wait := c.held.wait(item, o.uid); v.remove != "" && wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	kind, err := c.kind(ctx, item)
	if err != nil {
		return reconcile.Result{}, err
	}
	if added {
		c.tell(ctx, kind, item, o, v)
	}
	switch {
	case len(v.drop) > 0:
		err = c.backend.patch(ctx, kind, item, o, patch{references: without(o.references, v.drop)})
		c.metrics.count(actionReference, err)
	case v.remove != "":
		if v.remove == metav1.DeletePropagationForeground && slices.Contains(v.states, waiting) {
			if err := c.open(ctx, kind, item, o); err != nil {
				return reconcile.Result{}, err
			}
		}
		err = c.backend.remove(ctx, kind, item, o, v.remove)
		c.metrics.count(actionDelete, err)
	}
	return reconcile.Result{}, err
}

// open opens a circle: where a dependent of an object waits for its own dependents, the object
// cannot wait for it and keep its owners at the same time.
func (c *collector) open(ctx context.Context, kind storage.Kind, item Item, o object) error {
	// What was just seen to wait must not be seen as it was before that.
	circle, err := c.anyDependent(ctx, item, o, c.backend.read, func(_ dependent, of *object) bool { return of.waits() })
	references := slices.Clone(o.references)
	blocking := false
	for i := range references {
		if isTrue(references[i].BlockOwnerDeletion) {
			blocking = true
			references[i].BlockOwnerDeletion = new(bool)
		}
	}
	if err != nil || !circle || !blocking {
		return err
	}
	err = c.backend.patch(ctx, kind, item, o, patch{references: references})
	c.metrics.count(actionReference, err)
	if err == nil {
		err = errAgain // with the version that it has now
	}
	return err
}

// finish lets an owner go that waits for its dependents, once none is left that blocks it.
func (c *collector) finish(ctx context.Context, item Item, o object) error {
	if blocked, err := c.blocked(ctx, item, o); blocked || err != nil {
		return err // it is looked at when one of them changes
	}
	if err := c.backend.catchUp(ctx, item, o); err != nil {
		return err
	}
	if blocked, err := c.blocked(ctx, item, o); blocked || err != nil {
		return err
	}
	return c.unfinalize(ctx, item, o, metav1.FinalizerDeleteDependents)
}

// blocked reports whether dependents are left that keep an owner.
func (c *collector) blocked(ctx context.Context, item Item, o object) (bool, error) {
	return c.anyDependent(ctx, item, o, c.backend.get, func(d dependent, of *object) bool {
		_, blocks := of.refers(o.uid)
		return d.blocks && blocks
	})
}

// anyDependent reports whether something holds for a dependent of an object, as get has it.
func (c *collector) anyDependent(ctx context.Context, item Item, o object, get func(context.Context, Item) (object, error), holds func(d dependent, of *object) bool) (bool, error) {
	for _, d := range c.graph.dependentsOf(ownerOf(item.LogicalCluster(), o.uid)) {
		of, err := get(ctx, d.item)
		if err != nil || holds(d, &of) {
			return err == nil, err
		}
	}
	return false, nil
}

// orphan removes the references to an owner, and lets it go.
func (c *collector) orphan(ctx context.Context, item Item, o object) error {
	if err := c.backend.catchUp(ctx, item, o); err != nil {
		return err
	}
	var errs []error
	for _, d := range c.graph.dependentsOf(ownerOf(item.LogicalCluster(), o.uid)) {
		of, err := c.backend.get(ctx, d.item)
		if refers, _ := of.refers(o.uid); err == nil && !refers {
			continue
		}
		var kind storage.Kind
		if err == nil {
			kind, err = c.kind(ctx, d.item)
		}
		if err == nil {
			err = c.backend.patch(ctx, kind, d.item, of, patch{references: slices.DeleteFunc(slices.Clone(of.references),
				func(r metav1.OwnerReference) bool { return r.UID == o.uid })})
			c.metrics.count(actionReference, err)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.unfinalize(ctx, item, o, metav1.FinalizerOrphanDependents)
}

// unfinalize removes one of the collector's finalizers.
func (c *collector) unfinalize(ctx context.Context, item Item, o object, finalizer string) error {
	kind, err := c.kind(ctx, item)
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(o.finalizers), func(name string) bool { return name == finalizer })
	err = c.backend.patch(ctx, kind, item, o, patch{finalizers: left})
	c.metrics.count(actionFinalizer, err)
	return err
}

// kind returns what an item is written as.
func (c *collector) kind(ctx context.Context, item Item) (storage.Kind, error) {
	place := item.place()
	kind, served, err := c.backend.Served(ctx, place.Cluster, item.prefix(), place.Identity)
	if err == nil && !served {
		err = errUnserved
	}
	return kind, err
}

// tell reports the references of an object that cannot be right: in it, they were written just
// now.
func (c *collector) tell(ctx context.Context, kind storage.Kind, item Item, o object, v verdict) {
	for _, r := range v.invalid {
		c.backend.report(ctx, kind, item, o, r)
	}
	var lookups []lookup
	for i, s := range v.states {
		if s != dangling {
			continue
		}
		if lookups == nil {
			var err error
			if lookups, err = c.locate(ctx, item, o, &verdict{}); err != nil {
				return
			}
		}
		if r := o.references[i]; lookups[i].item != "" && c.backend.elsewhere(ctx, lookups[i].item, r.UID) {
			c.backend.report(ctx, kind, item, o, r)
		}
	}
}

// errAgain has an object looked at again in its new state.
var errAgain = apierrors.NewConflict(schema.GroupResource{}, "", errors.New("it was changed by the collector"))

// backoff bounds, as in Kubernetes.
const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = 1000 * time.Second
)
