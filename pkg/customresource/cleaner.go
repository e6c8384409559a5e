package customresource

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
)

// errAgain says that there is more to do, later, and that nothing is wrong.
var errAgain = errors.New("instances are still being deleted, or the definition was just changed")

// errUnchanged says that an update has nothing to change.
var errUnchanged = errors.New("nothing to change")

// cleanKey names a definition.
type cleanKey struct {
	cluster logicalcluster.Name
	name    string
}

// cleaner removes the instances of definitions that are being deleted, and then
// the definitions; it offers names that became free to definitions that wanted
// them; and it has definitions tell that their schemas are not structural.
type cleaner struct {
	server *Server
	queue  workqueue.TypedRateLimitingInterface[cleanKey]
}

func newCleaner(s *Server) *cleaner {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[cleanKey](50*time.Millisecond, 30*time.Second)
	return &cleaner{server: s, queue: workqueue.NewTypedRateLimitingQueue(limiter)}
}

// changed queues what a change of a definition gives to do.
func (c *cleaner) changed(before, after *entry) {
	if after != nil && after.toDo() {
		c.queue.Add(cleanKey{after.cluster, after.name})
	}
	if before != nil && (after == nil || !equalNames(&before.names, &after.names)) {
		c.offerNames(nameScope{cluster: before.cluster, group: groupOf(before.name)})
	}
}

// toDo reports whether a definition has instances to clean up, does not tell
// that it is not structural, or wants names that may have become free since it
// was written, or while no server ran.
func (e *entry) toDo() bool {
	if e.deleting {
		return e.cleanup
	}
	return e.untold || !e.accepted
}

// offerNames queues the definitions that may want names which became free.
func (c *cleaner) offerNames(scope nameScope) {
	for _, name := range c.server.objects.rejected(scope) {
		c.queue.Add(cleanKey{scope.cluster, name})
	}
}

func equalNames(a, b *apiextensions.CustomResourceDefinitionNames) bool {
	return a.Plural == b.Plural && a.Singular == b.Singular && a.Kind == b.Kind && a.ListKind == b.ListKind &&
		sets.New(a.ShortNames...).Equal(sets.New(b.ShortNames...))
}

// run works until ctx ends.
func (c *cleaner) run(ctx context.Context, workers int) {
	c.server.objects.observe(c.changed)
	c.server.crds.names.onFreed(c.offerNames)
	var wg sync.WaitGroup
	defer wg.Wait()
	for range workers {
		wg.Go(func() { c.work(ctx) })
	}
	<-ctx.Done()
	c.queue.ShutDown()
}

// work takes keys from the queue until it is shut down.
func (c *cleaner) work(ctx context.Context) {
	for {
		key, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		err := c.reconcile(ctx, key)
		switch {
		case err == nil, ctx.Err() != nil:
			c.queue.Forget(key)
		case errors.Is(err, errAgain):
			c.queue.AddRateLimited(key)
		default:
			klog.FromContext(ctx).Error(err, "Cannot reconcile a definition", "logicalCluster", key.cluster, "definition", key.name)
			c.queue.AddRateLimited(key)
		}
		c.queue.Done(key)
	}
}

func (c *cleaner) reconcile(ctx context.Context, key cleanKey) error {
	e := c.server.objects.entry(key.cluster, key.name)
	if e == nil {
		return nil
	}
	ctx = storeContext(ctx, request.Cluster{Name: key.cluster})
	switch {
	case !e.toDo():
		return nil
	case e.deleting:
		return c.clean(ctx, e)
	default:
		// An update without a change settles the names, and what the conditions say.
		return c.update(ctx, key.name, func(*apiextensions.CustomResourceDefinition) bool { return true })
	}
}

// clean deletes the instances of a definition, and once they are gone, takes
// the finalizer off it.
func (c *cleaner) clean(ctx context.Context, e *entry) error {
	done := apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.Terminating, Status: apiextensions.ConditionFalse,
		Reason: "NeverEstablished", Message: "resource was never established",
	}
	if e.served {
		err := c.deleteInstances(ctx, e)
		switch {
		case errors.Is(err, errAgain):
			return errors.Join(err, c.progress(ctx, e, "InstanceDeletionInProgress", "CustomResource deletion is in progress"))
		case err != nil:
			return errors.Join(err, c.progress(ctx, e, "InstanceDeletionFailed", err.Error()))
		}
		done.Reason, done.Message = "InstanceDeletionCompleted", "removed all instances"
	}
	return c.update(ctx, e.name, func(crd *apiextensions.CustomResourceDefinition) bool {
		if crd.DeletionTimestamp.IsZero() || !apiextensions.CRDHasFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer) {
			return false
		}
		setCondition(crd, done)
		apiextensions.CRDRemoveFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer)
		return true
	})
}

// progress says in the definition's status how the deletion goes.
func (c *cleaner) progress(ctx context.Context, e *entry, reason, message string) error {
	return c.update(ctx, e.name, func(crd *apiextensions.CustomResourceDefinition) bool {
		setCondition(crd, apiextensions.CustomResourceDefinitionCondition{
			Type: apiextensions.Terminating, Status: apiextensions.ConditionTrue, Reason: reason, Message: message,
		})
		return true
	})
}

// deleteInstances deletes all instances, and fails with errAgain as
// long as finalizers keep some.
func (c *cleaner) deleteInstances(ctx context.Context, e *entry) error {
	used := c.server.table.acquire(e.schema)
	defer func() { c.server.table.release(used, time.Now()) }()
	storage, err := c.server.instances.GetCustomResourceListerCollectionDeleter(used.crd)
	if err != nil {
		return fmt.Errorf("no storage for the instances of %s: %w", e.name, err)
	}
	left, err := namespacesOf(ctx, storage)
	if err != nil {
		return err
	}
	for namespace := range left {
		in := genericapirequest.WithNamespace(ctx, namespace)
		if _, err := storage.DeleteCollection(in, rest.ValidateAllObjectFunc, nil, nil); err != nil {
			return fmt.Errorf("deleting instances of %s: %w", e.name, err)
		}
	}
	if len(left) == 0 {
		return nil
	}
	if left, err = namespacesOf(ctx, storage); err != nil {
		return err
	}
	if len(left) > 0 {
		return errAgain
	}
	return nil
}

// namespacesOf returns the namespaces that hold instances.
func namespacesOf(ctx context.Context, storage finalizer.ListerCollectionDeleter) (sets.Set[string], error) {
	obj, err := storage.List(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("listing instances: %w", err)
	}
	list, ok := obj.(*unstructured.UnstructuredList)
	if !ok {
		return nil, fmt.Errorf("listing instances gave a %T", obj)
	}
	namespaces := sets.New[string]()
	for i := range list.Items {
		namespaces.Insert(list.Items[i].GetNamespace())
	}
	return namespaces, nil
}

// update changes the status of a definition, or its finalizers, with change,
// unless that returns false.
func (c *cleaner) update(ctx context.Context, name string, change func(*apiextensions.CustomResourceDefinition) bool) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		crd, ok := old.DeepCopyObject().(*apiextensions.CustomResourceDefinition)
		if !ok {
			return nil, fmt.Errorf("definition %s is a %T", name, old)
		}
		if !change(crd) {
			return nil, errUnchanged
		}
		return crd, nil
	})
	_, _, err := c.server.crds.status.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	switch {
	case isGone(err), errors.Is(err, errUnchanged):
		return nil
	case apierrors.IsConflict(err):
		return errAgain
	default:
		return err
	}
}
