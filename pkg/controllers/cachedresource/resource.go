package cachedresource

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// serve finds what a cached resource names, and says in it whether that can be replicated.
func (c *controller) serve(ctx context.Context, object *cachev1alpha1.CachedResource) (served Served, valid bool, err error) {
	resource := apis.CachedResourceOf(object)
	served, ok, err := c.Store.Served(ctx, logicalcluster.From(object), resource)
	if err != nil {
		return served, false, err
	}
	invalid := func(reason, format string, args ...any) (Served, bool, error) {
		conditions.MarkFalse(object, cachev1alpha1.CachedResourceValid, reason, conditionsv1alpha1.ConditionSeverityError, format, args...)
		return served, false, nil
	}
	switch {
	case !ok:
		return invalid(cachev1alpha1.CachedResourceValidNoResources, "There is no %s here: create its CustomResourceDefinition, or bind an API that has it", resource)
	case served.Namespaced:
		return invalid(cachev1alpha1.ResourceNotClusterScoped, "%s is namespaced: only cluster-scoped resources can be replicated", resource)
	case served.Converted:
		return invalid(reasonConverted, "A webhook converts %s into the version %s: name the version in which objects are stored", resource.GroupResource(), resource.Version)
	}
	conditions.MarkTrue(object, cachev1alpha1.CachedResourceValid)
	return served, true, nil
}

const scopeCluster = "Cluster"

// tellCache has the cache server know what the objects of a cached resource are, which are replicated after that.
func tellCache(object *cachev1alpha1.CachedResource, kind string) {
	if object.Annotations == nil {
		object.Annotations = map[string]string{}
	}
	object.Annotations[apis.CachedKindAnnotation], object.Annotations[apis.CachedScopeAnnotation] = kind, scopeCluster
}

// publication returns what a cached resource has replicated, all that it selects.
func (c *controller) publication(object *cachev1alpha1.CachedResource, served Served) (*apis.Publication, error) {
	selector := labels.Everything()
	if object.Spec.LabelSelector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(object.Spec.LabelSelector); err != nil {
			return nil, err
		}
	}
	revision, err := strconv.ParseUint(object.ResourceVersion, 10, 64)
	return &apis.Publication{
		Resource: apis.CachedResourceOf(object), Kind: served.Kind, Identity: object.Status.IdentityHash, API: served.API,
		Selector: selector, Revision: revision,
	}, err
}

// replicate has the objects of a valid cached resource replicated, and says how many are.
func (c *controller) replicate(ctx context.Context, object *cachev1alpha1.CachedResource, served Served) (reconcile.Result, error) {
	if c.unchanged(object, served) {
		return reconcile.Result{RequeueAfter: lookAgain}, nil
	}
	done := c.watched.count(client.KeyOf(object))
	p, err := c.publication(object, served)
	if err != nil {
		return reconcile.Result{}, err
	}
	local, err := c.choose(ctx, object, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	wait := func(says string) {
		conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reasonWaiting, conditionsv1alpha1.ConditionSeverityInfo, "%s", says)
	}
	if !replicates(object) && c.incomplete(p.Replicated().GroupResource()) {
		wait("Others with this identity had replicas before the shard started, and come first: it goes on by itself")
		return reconcile.Result{Backoff: true}, nil
	}
	if err := c.Publications.Publish(c.publisher(client.KeyOf(object)), p); err != nil {
		if already, ok := errors.AsType[*apis.CachedAlreadyError](err); ok {
			says(object, already)
		} else {
			conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reasonIdentityInUse, conditionsv1alpha1.ConditionSeverityError, "%v", err)
			object.Status.ResourceCounts = nil // what it had, the others do not select
		}
		return reconcile.Result{Backoff: true}, nil
	}
	tellCache(object, served.Kind)
	if c.incomplete(p.Replicated().GroupResource()) {
		return reconcile.Result{Backoff: true}, nil // what it says is true, as before the start
	}
	if err := c.Table.Ensure(p.Replicated()); err != nil {
		wait("What was replicated before is being deleted: it goes on by itself when that is done")
		return reconcile.Result{Backoff: true}, nil //nolint:nilerr // it is said
	}
	replicated, err := c.cachedObjects(ctx, object)
	switch {
	case isUnserved(err):
		wait("The cache server does not serve the resource yet")
		return reconcile.Result{Backoff: true}, nil
	case err != nil:
		wait("The cache server cannot be asked what it has: it goes on by itself when that answers")
		return reconcile.Result{}, err
	}
	object.Status.ResourceCounts = &cachev1alpha1.ResourceCount{Local: local, Cache: replicated}
	if p.Names != nil {
		conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reasonTooMany, conditionsv1alpha1.ConditionSeverityError,
			"The oldest %d of %d objects are replicated: a workspace may have no more than %s on the cache server. Select fewer, or delete some", len(p.Names), local, c.limits())
		return reconcile.Result{RequeueAfter: lookAgain / 2}, nil
	}
	conditions.MarkTrue(object, cachev1alpha1.ReplicationStarted)
	if local != replicated {
		return reconcile.Result{Backoff: true}, nil
	}
	object.Status.Phase = cachev1alpha1.CachedResourcePhaseReady
	done(counted{version: object.ResourceVersion, served: served, at: time.Now()})
	return reconcile.Result{RequeueAfter: lookAgain}, nil
}

// unchanged reports whether all was replicated when the objects were counted last, not long ago, and nothing has changed
// since by which that may be another number: the objects, the cached resource, what is served, or the room that older
// ones leave it.
func (c *controller) unchanged(object *cachev1alpha1.CachedResource, served Served) bool {
	last, counts := c.watched.counted(client.KeyOf(object)), object.Status.ResourceCounts
	if counts == nil || last.version != object.ResourceVersion || last.served != served || time.Since(last.at) >= countAgain {
		return false
	}
	if stored, known := c.Store.Bytes(logicalcluster.From(object)); c.LimitBytes > 0 && (!known || stored > c.LimitBytes) {
		return false
	}
	objects, _ := c.room(object)
	return c.Limit == 0 || counts.Local <= objects
}

func hasFinalizer(object *cachev1alpha1.CachedResource) bool {
	return slices.Contains(object.Finalizers, cachev1alpha1.CachedResourceFinalizer)
}

func without(all []string, one string) []string {
	return slices.DeleteFunc(all, func(other string) bool { return other == one })
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
