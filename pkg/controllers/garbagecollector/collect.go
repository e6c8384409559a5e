package garbagecollector

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/storage"
)

// errUnserved is returned for objects that cannot be written because their API is not served.
var errUnserved = errors.New("the object is not served")

// collect processes an object: its owner references, or its dependents if it is being deleted.
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
		err = nil // deleted concurrently
	case errors.Is(err, errBusy):
		return reconcile.Result{Backoff: true}, nil
	}
	return result, err
}

func (c *collector) own(ctx context.Context, item Item, o object) (reconcile.Result, error) {
	added := c.graph.takeAdded(item)
	defer func() {
		if added { // the next attempt reports invalid references
			c.graph.putAdded(item)
		}
	}()
	v, err := c.decide(ctx, item, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	if v.unserved {
		c.parked.add(item)
	}
	if v.remove == "" && len(v.drop) == 0 && len(v.invalid) == 0 {
		added = false
		return reconcile.Result{}, nil
	}
	if wait := c.delayed.wait(item, o.uid); v.remove != "" && wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	kind, err := c.kind(ctx, item)
	if err != nil {
		return reconcile.Result{}, err
	}
	if added {
		c.reportInvalid(ctx, kind, item, o, v)
		added = false
	}
	switch {
	case len(v.drop) > 0:
		err = c.backend.patch(ctx, kind, item, o, patch{references: without(o.references, v.drop)})
		c.metrics.count(referenceAction, err)
	case v.remove != "":
		if v.remove == metav1.DeletePropagationForeground && v.states[waiting] {
			if err := c.open(ctx, kind, item, o); err != nil {
				return reconcile.Result{}, err
			}
		}
		err = c.backend.remove(ctx, kind, item, o, v.remove)
		c.metrics.count(deleteAction, err)
	}
	return reconcile.Result{}, err
}

// open breaks a cycle: an object must not block its owners while it waits for a dependent that waits, too.
func (c *collector) open(ctx context.Context, kind storage.Kind, item Item, o object) error {
	// Dependents that were observed to wait must not be read in an older state.
	cycle, err := c.anyDependent(ctx, item, o, c.backend.read, func(_ dependent, of *object) bool { return of.waits() })
	references := slices.Clone(o.references)
	blocking := false
	for i := range references {
		if ptr.Deref(references[i].BlockOwnerDeletion, false) {
			blocking = true
			references[i].BlockOwnerDeletion = new(bool)
		}
	}
	if err != nil || !cycle || !blocking {
		return err
	}
	err = c.backend.patch(ctx, kind, item, o, patch{references: references})
	c.metrics.count(referenceAction, err)
	if err == nil {
		err = errRetry // retry with the new version
	}
	return err
}

func (c *collector) finish(ctx context.Context, item Item, o object) error {
	if blocked, err := c.blocked(ctx, item, o); blocked || err != nil {
		return err // requeued when one of them changes
	}
	if err := c.backend.catchUp(ctx, item, o); err != nil {
		return err
	}
	if blocked, err := c.blocked(ctx, item, o); blocked || err != nil {
		return err
	}
	return c.unfinalize(ctx, item, o, metav1.FinalizerDeleteDependents)
}

func (c *collector) blocked(ctx context.Context, item Item, o object) (bool, error) {
	return c.anyDependent(ctx, item, o, c.backend.get, func(d dependent, of *object) bool {
		return d.blocks && uidsOf(*of)[o.uid]
	})
}

// anyDependent reports whether matches returns true for a dependent of an object, as read by get.
func (c *collector) anyDependent(ctx context.Context, item Item, o object, get func(context.Context, Item) (object, error), matches func(d dependent, of *object) bool) (bool, error) {
	for _, d := range c.graph.dependentsOf(ownerOf(item.LogicalCluster(), o.uid)) {
		of, err := get(ctx, d.item)
		if err != nil || matches(d, &of) {
			return err == nil, err
		}
	}
	return false, nil
}

func (c *collector) orphan(ctx context.Context, item Item, o object) error {
	if err := c.backend.catchUp(ctx, item, o); err != nil {
		return err
	}
	var errs []error
	for _, d := range c.graph.dependentsOf(ownerOf(item.LogicalCluster(), o.uid)) {
		of, err := c.backend.get(ctx, d.item)
		if _, refers := uidsOf(of)[o.uid]; err == nil && !refers {
			continue
		}
		var kind storage.Kind
		if err == nil {
			kind, err = c.kind(ctx, d.item)
		}
		if err == nil {
			err = c.backend.patch(ctx, kind, d.item, of, patch{references: slices.DeleteFunc(slices.Clone(of.references),
				func(r metav1.OwnerReference) bool { return r.UID == o.uid })})
			c.metrics.count(referenceAction, err)
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

func (c *collector) unfinalize(ctx context.Context, item Item, o object, finalizer string) error {
	kind, err := c.kind(ctx, item)
	if err != nil {
		return err
	}
	remaining := slices.DeleteFunc(slices.Clone(o.finalizers), func(name string) bool { return name == finalizer })
	err = c.backend.patch(ctx, kind, item, o, patch{finalizers: remaining})
	c.metrics.count(finalizerAction, err)
	return err
}

func (c *collector) kind(ctx context.Context, item Item) (storage.Kind, error) {
	key := item.key()
	kind, served, err := c.backend.Served(ctx, key.Cluster, item.prefix(), key.Identity)
	if err == nil && !served {
		err = errUnserved
	}
	return kind, err
}

// reportInvalid reports the invalid references of an object. It is called when the references are new.
func (c *collector) reportInvalid(ctx context.Context, kind storage.Kind, item Item, o object, v decision) {
	for _, r := range v.invalid {
		c.backend.report(ctx, kind, item, o, r)
	}
	for i, l := range v.lookups {
		if r := o.references[i]; l.state == dangling && l.item != "" && c.backend.inOtherNamespace(ctx, l.item, r.UID) {
			c.backend.report(ctx, kind, item, o, r)
		}
	}
}

// errRetry requeues an object with its new state.
var errRetry = apierrors.NewConflict(schema.GroupResource{}, "", errors.New("the collector changed it"))

// Backoff as in Kubernetes.
const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = 1000 * time.Second
)
