package cachedresource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
)

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
		return invalid(cachev1alpha1.CachedResourceValidNoResources, "%s is not served in this workspace: create its CustomResourceDefinition, or bind an API that provides it", resource)
	case served.Namespaced:
		return invalid(cachev1alpha1.ResourceNotClusterScoped, "%s is namespaced: only cluster-scoped resources can be replicated", resource)
	case served.Converted:
		return invalid(reasonConverted, "A webhook converts %s into the version %s: specify the version in which objects are stored", resource.GroupResource(), resource.Version)
	}
	conditions.MarkTrue(object, cachev1alpha1.CachedResourceValid)
	return served, true, nil
}

// annotateKind records the kind and scope of the objects for the cache server. This must precede their replication.
func annotateKind(object *cachev1alpha1.CachedResource, kind string) {
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, apis.CachedKindAnnotation, kind)
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, apis.CachedScopeAnnotation, "Cluster")
}

// publication returns the selection of a cached resource without limits.
func (c *controller) publication(object *cachev1alpha1.CachedResource, served Served) (*apis.Publication, error) {
	selector := labels.Everything()
	if object.Spec.LabelSelector != nil {
		var err error
		if selector, err = request.LabelSelector(object.Spec.LabelSelector); err != nil {
			return nil, err
		}
	}
	revision, err := strconv.ParseUint(object.ResourceVersion, 10, 64)
	return &apis.Publication{
		Resource: apis.CachedResourceOf(object), Kind: served.Kind, Identity: object.Status.IdentityHash, API: served.API,
		Selector: selector, Revision: revision,
	}, err
}

// replicate publishes the selection of a valid cached resource and updates the counts.
func (c *controller) replicate(ctx context.Context, object *cachev1alpha1.CachedResource, served Served) (reconcile.Result, error) {
	if c.unchanged(object, served) {
		return reconcile.Result{RequeueAfter: recheckInterval}, nil
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
	wait := func(message string) {
		conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reasonWaiting, conditionsv1alpha1.ConditionSeverityInfo, "%s", message)
	}
	if !replicates(object) && c.dropPublished(p.Replicated().GroupResource()) {
		wait("Waiting for other cached resources with this identity, which had replicas before the shard started")
		return reconcile.Result{Backoff: true}, nil
	}
	if err := c.Publications.Publish(c.publisher(client.KeyOf(object)), p); err != nil {
		if conflict, ok := errors.AsType[*apis.CachedAlreadyError](err); ok {
			reportConflict(object, conflict)
		} else {
			conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reasonIdentityInUse, conditionsv1alpha1.ConditionSeverityError, "%v", err)
			object.Status.ResourceCounts = nil // previous objects are not selected by the other cached resources
		}
		return reconcile.Result{Backoff: true}, nil
	}
	annotateKind(object, served.Kind)
	if c.dropPublished(p.Replicated().GroupResource()) {
		return reconcile.Result{Backoff: true}, nil // the status from before the start is still true
	}
	if err := c.Table.Ensure(p.Replicated()); err != nil {
		wait("Waiting for the deletion of the previous replicas")
		return reconcile.Result{Backoff: true}, nil //nolint:nilerr // reported in the condition
	}
	replicated, err := c.cachedObjects(ctx, object)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err):
		wait("The cache server does not serve the resource yet")
		return reconcile.Result{Backoff: true}, nil
	case err != nil:
		wait("The cache server cannot be read, retrying")
		return reconcile.Result{}, err
	}
	object.Status.ResourceCounts = &cachev1alpha1.ResourceCount{Local: local, Cache: replicated}
	if p.Names != nil {
		conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reasonTooMany, conditionsv1alpha1.ConditionSeverityError,
			"The oldest %d of %d objects are replicated: a workspace may have no more than %s on the cache server. Select fewer, or delete some", len(p.Names), local, c.limits())
		return reconcile.Result{RequeueAfter: recheckInterval / 2}, nil
	}
	conditions.MarkTrue(object, cachev1alpha1.ReplicationStarted)
	if local != replicated {
		return reconcile.Result{Backoff: true}, nil
	}
	object.Status.Phase = cachev1alpha1.CachedResourcePhaseReady
	done(counted{version: object.ResourceVersion, served: served, at: time.Now()})
	return reconcile.Result{RequeueAfter: recheckInterval}, nil
}

// unchanged reports whether everything was replicated at the last count, and nothing that affects it has changed since.
func (c *controller) unchanged(object *cachev1alpha1.CachedResource, served Served) bool {
	last, counts := c.watched.counted(client.KeyOf(object)), object.Status.ResourceCounts
	if counts == nil || last.version != object.ResourceVersion || last.served != served || time.Since(last.at) >= recountInterval {
		return false
	}
	if stored, known := c.Store.Bytes(logicalcluster.From(object)); c.LimitBytes > 0 && (!known || stored > c.LimitBytes) {
		return false
	}
	objects, _ := c.remainingLimits(object)
	return c.Limit == 0 || counts.Local <= objects
}

func hasFinalizer(object *cachev1alpha1.CachedResource) bool {
	return slices.Contains(object.Finalizers, cachev1alpha1.CachedResourceFinalizer)
}

const countTimeout = 5 * time.Second

// choose returns the number of selected objects. If they exceed the limits, it restricts p to the oldest ones.
func (c *controller) choose(ctx context.Context, object *cachev1alpha1.CachedResource, p *apis.Publication) (count int, err error) {
	cluster, gvr := logicalcluster.From(object), apis.CachedResourceOf(object)
	objects, bytes := c.remainingLimits(object)
	stored, known := c.Store.Bytes(cluster)
	if small := c.LimitBytes == 0 || known && stored <= c.LimitBytes; small && p.Selector.Empty() {
		if count, err = total(ctx, c.Local.Cluster(cluster.Path()), gvr); err != nil || c.Limit == 0 || count <= objects {
			return count, err
		}
	}
	var all []Stored
	if err := c.Store.Each(ctx, cluster, gvr, func(o Stored) {
		if p.Selector.Matches(labels.Set(o.Labels)) {
			o.Labels = nil
			all = append(all, o)
		}
	}); err != nil {
		return 0, fmt.Errorf("counting %s: %w", gvr.GroupResource(), err)
	}
	slices.SortFunc(all, func(a, b Stored) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.UID, b.UID))
	})
	for i, o := range all {
		if c.Limit > 0 && i >= objects || c.LimitBytes > 0 && p.Bytes+o.Bytes > bytes {
			p.Names = make([]string, 0, i)
			for _, fits := range all[:i] {
				p.Names = append(p.Names, fits.Name)
			}
			break
		}
		p.Bytes += o.Bytes
	}
	return len(all), nil
}

// remainingLimits returns the limits of the logical cluster minus the usage of older cached resources.
func (c *controller) remainingLimits(object *cachev1alpha1.CachedResource) (objects int, bytes int64) {
	objects, bytes = c.Limit, c.LimitBytes
	for publisher, other := range c.others(object) {
		if !older(other, object) {
			continue
		}
		if other.Status.ResourceCounts != nil {
			objects -= min(other.Status.ResourceCounts.Local, objects)
		}
		bytes -= min(c.Publications.Bytes(publisher), bytes)
	}
	return objects, bytes
}

func (c *controller) limits() string {
	var all []string
	if c.Limit > 0 {
		all = append(all, strconv.Itoa(c.Limit))
	}
	if c.LimitBytes > 0 {
		all = append(all, resource.NewQuantity(c.LimitBytes, resource.BinarySI).String()+"B of them")
	}
	return strings.Join(all, ", and ")
}

func (c *controller) cachedObjects(ctx context.Context, object *cachev1alpha1.CachedResource) (int, error) {
	return total(ctx, c.Cache.Cluster(logicalcluster.From(object).Path()), apis.ReplicatedOf(object))
}

func (c *controller) deleted(ctx context.Context, object *cachev1alpha1.CachedResource) (bool, error) {
	n, err := c.cachedObjects(ctx, object)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return n == 0 && err == nil, err
}

// total counts the objects of a resource with one short list.
func total(ctx context.Context, scope client.Scope, gvr schema.GroupVersionResource) (count int, err error) {
	clients, err := scope.Metadata()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	page, err := clients.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("counting %s: %w", gvr.GroupResource(), err)
	}
	return len(page.Items) + int(ptr.Deref(page.RemainingItemCount, 0)), nil
}

// names are the names of the resource, in the order of Config.All.
var names = [...]string{apis.CachedResources, apis.ClusterCachedResources}

// others returns the other cached resources of the logical cluster, of both kinds.
func (c *controller) others(object *cachev1alpha1.CachedResource) iter.Seq2[apis.Publisher, *cachev1alpha1.CachedResource] {
	own := c.publisher(client.KeyOf(object))
	return func(yield func(apis.Publisher, *cachev1alpha1.CachedResource) bool) {
		for i, informer := range c.All {
			for _, other := range informer.Lister().Cluster(own.Cluster).List(nil) {
				publisher := apis.Publisher{Resource: names[i], Cluster: own.Cluster, Name: other.Name}
				if publisher != own && !yield(publisher, other) {
					return
				}
			}
		}
	}
}

func older(a, b *cachev1alpha1.CachedResource) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0
}

func mayHaveReplicas(object *cachev1alpha1.CachedResource) bool {
	return object.Annotations[apis.CachedKindAnnotation] != "" && object.Status.IdentityHash != ""
}

// takesPrecedence reports whether a replicates the resource if b selects it, too, e.g. because both were created simultaneously
// on two replicas of the shard. The order depends only on stored state, so that a restart deletes no replicas.
func takesPrecedence(a, b *cachev1alpha1.CachedResource) bool {
	if mayHaveReplicas(a) != mayHaveReplicas(b) {
		return mayHaveReplicas(a)
	}
	return older(a, b)
}

// conflict returns an error if another cached resource that takes precedence replicates the resource.
func (c *controller) conflict(object *cachev1alpha1.CachedResource) *apis.CachedAlreadyError {
	resource := apis.CachedResourceOf(object)
	for by, other := range c.others(object) {
		if apis.CachedResourceOf(other) == resource && takesPrecedence(other, object) {
			return &apis.CachedAlreadyError{Resource: resource, By: by}
		}
	}
	return nil
}

func reportConflict(object *cachev1alpha1.CachedResource, conflict *apis.CachedAlreadyError) {
	stopped(object, reasonAlreadyCached, conditionsv1alpha1.ConditionSeverityError,
		conflict.Error()+": delete this one, or the other one with its replicas")
}

// sharesReplicas reports whether another cached resource that takes precedence selects the same replicas.
func (c *controller) sharesReplicas(object *cachev1alpha1.CachedResource) bool {
	resource := apis.CachedResourceOf(object)
	for _, other := range c.others(object) {
		if apis.CachedResourceOf(other) == resource && other.Status.IdentityHash == object.Status.IdentityHash && takesPrecedence(other, object) {
			return true
		}
	}
	return false
}

// sameResourceOf enqueues cached resources when another one for the same resource changes.
func (c *controller) sameResourceOf(all *client.Informer[*cachev1alpha1.CachedResource]) reconcile.Source[client.Key] {
	return reconcile.FromInformer(all, func(changed *cachev1alpha1.CachedResource) (conflicting []client.Key) {
		for _, other := range c.Objects.Lister().Cluster(client.KeyOf(changed).Cluster).List(nil) {
			if other.UID != changed.UID && apis.CachedResourceOf(other) == apis.CachedResourceOf(changed) {
				conflicting = append(conflicting, client.KeyOf(other))
			}
		}
		return conflicting
	})
}

// replicates reports whether a cached resource had replicas according to its status and still may have them.
func replicates(object *cachev1alpha1.CachedResource) bool {
	if object.DeletionTimestamp != nil || conditions.IsFalse(object, cachev1alpha1.CachedResourceValid) || conditions.GetReason(object, cachev1alpha1.ReplicationStarted) == reasonAlreadyCached {
		return false
	}
	counts := object.Status.ResourceCounts
	return mayHaveReplicas(object) && (counts != nil && counts.Cache > 0 || conditions.IsTrue(object, cachev1alpha1.ReplicationStarted))
}

func (c *controller) remember(context.Context, reconcile.Queue[client.Key]) (func(), error) {
	c.initialPublishers.mu.Lock()
	defer c.initialPublishers.mu.Unlock()
	c.initialPublishers.of = map[schema.GroupResource][]apis.Publisher{}
	for i, informer := range c.All {
		for _, object := range informer.Lister().List(nil) {
			if replicates(object) {
				key, resource := client.KeyOf(object), apis.ReplicatedOf(object).GroupResource()
				c.initialPublishers.of[resource] = append(c.initialPublishers.of[resource], apis.Publisher{Resource: names[i], Cluster: key.Cluster, Name: key.Name})
			}
		}
	}
	return func() {}, nil
}

// dropPublished drops the initial publishers of a resource that have been published. It reports whether some cached
// resources that had replicas at the start have not. Until they are, replicas must not be written or deleted, because
// theirs would be obsolete, or replaced.
func (c *controller) dropPublished(resource schema.GroupResource) (incomplete bool) {
	c.initialPublishers.mu.Lock()
	defer c.initialPublishers.mu.Unlock()
	all := c.initialPublishers.of[resource]
	for ; len(all) > 0; all = all[:len(all)-1] {
		last := all[len(all)-1]
		_, _, known := c.Publications.Published(last)
		object, err := c.All[slices.Index(names[:], last.Resource)].Lister().Get(client.Key{Cluster: last.Cluster, Name: last.Name})
		if !known && err == nil && replicates(object) && apis.ReplicatedOf(object).GroupResource() == resource {
			c.initialPublishers.of[resource] = all
			return true
		}
	}
	delete(c.initialPublishers.of, resource)
	return false
}
