// Package cachedresource reconciles CachedResources and ClusterCachedResources. It finds the named resource, assigns an identity,
// replicates the selected objects to the cache server, and deletes the replicas before a cached resource is deleted.
//
//	spec.identity ─► secret ─► status.identityHash ─┐
//	served resource: ResourceValid                  ─┼─► Publications: the objects to replicate
//	limits for objects ─────────────────────────────┘   Table: an entry <resource>:<identity>
//	                                                    ◄─ counts here and on the cache server
//
// Decisions (this file, resource.go) are separate from change notifications (config.go).
package cachedresource

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/secrets"
)

// NewCachedResourceController returns a controller. Its keys are cached resources.
func NewCachedResourceController(config Config) *reconcile.Controller[client.Key] {
	c := &controller{Config: config, watched: newWatched()}
	name := Name
	if config.Resource.Resource == apis.ClusterCachedResources {
		name = ClusterName
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: name, Reconcile: c.reconcile,
		Sources: []reconcile.Source[client.Key]{c.remember, reconcile.Keys(config.Objects), c.objectChanges, c.sameResourceOf(config.All[0]), c.sameResourceOf(config.All[1])},
	})
}

func (c *controller) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := c.Objects.Lister().Get(key)
	object, exists := c.latest.Of(key, cached, err == nil)
	switch {
	case !exists:
		c.watched.forget(key)
		return reconcile.Result{}, c.release(ctx, c.publisher(key))
	case object.DeletionTimestamp != nil:
		return c.finish(ctx, object)
	}
	updated := object.DeepCopy()
	if c.Cache == nil {
		conditions.MarkFalse(updated, cachev1alpha1.ReplicationStarted, reasonNoCache, conditionsv1alpha1.ConditionSeverityError,
			"This installation has no cache server: objects are not replicated")
		_, err := c.commit(ctx, object, updated)
		return reconcile.Result{}, err
	}
	if !hasFinalizer(object) {
		// The finalizer must be written before there are replicas.
		updated.Finalizers = append(updated.Finalizers, cachev1alpha1.CachedResourceFinalizer)
		if object, err = c.commit(ctx, object, updated); err != nil {
			return reconcile.Result{}, err
		}
		updated = object.DeepCopy()
	}
	result, problem := c.advance(ctx, updated)
	if _, err := c.commit(ctx, object, updated); err != nil {
		return reconcile.Result{}, err
	}
	return result, problem
}

// advance updates status and replication. Conditions report problems of the cached resource, and errors report problems
// of the server.
func (c *controller) advance(ctx context.Context, object *cachev1alpha1.CachedResource) (reconcile.Result, error) {
	if object.Status.Phase == "" {
		object.Status.Phase = cachev1alpha1.CachedResourcePhaseInitializing
	}
	if conflict := c.conflict(object); conflict != nil {
		reportConflict(object, conflict)
		return reconcile.Result{Backoff: true}, c.withdraw(ctx, object)
	}
	key := client.KeyOf(object)
	ref := apis.CachedSecretOf(object)
	c.watched.secret(key, client.Key{Cluster: key.Cluster, Namespace: ref.Namespace, Name: ref.Name})
	if err := c.identify(ctx, object); err != nil {
		return reconcile.Result{}, err
	}
	served, valid, err := c.serve(ctx, object)
	if err != nil {
		return reconcile.Result{}, err
	}
	c.watched.objects(key, served.Prefix)
	if !valid || object.Status.IdentityHash == "" {
		condition := "ResourceValid"
		if valid {
			condition = "IdentityValid"
		}
		stopped(object, reasonWaiting, conditionsv1alpha1.ConditionSeverityInfo, fmt.Sprintf("See the condition %s", condition))
		return reconcile.Result{Backoff: true}, c.withdraw(ctx, object)
	}
	return c.replicate(ctx, object, served)
}

// withdraw stops the replication of a cached resource that is invalid or conflicts with another one.
func (c *controller) withdraw(ctx context.Context, object *cachev1alpha1.CachedResource) error {
	publisher := c.publisher(client.KeyOf(object))
	counts := object.Status.ResourceCounts
	if _, _, ok := c.Publications.Published(publisher); !ok && (counts == nil || counts.Cache == 0) {
		return nil // it was not replicated
	}
	deleted, err := c.empty(ctx, object)
	if err != nil || !deleted {
		return err
	}
	object.Status.ResourceCounts = &cachev1alpha1.ResourceCount{}
	return c.release(ctx, publisher)
}

// finish deletes the replicas of a deleted cached resource, and then removes the finalizer.
func (c *controller) finish(ctx context.Context, object *cachev1alpha1.CachedResource) (reconcile.Result, error) {
	if !hasFinalizer(object) {
		return reconcile.Result{}, nil
	}
	var err error
	if phase := object.Status.Phase; phase != cachev1alpha1.CachedResourcePhaseDeleting && phase != cachev1alpha1.CachedResourcePhaseDeleted {
		if object, err = c.commit(ctx, object, deleting(object, nil)); err != nil {
			return reconcile.Result{}, reconcile.IgnoreNotFound(err)
		}
	}
	if c.Cache != nil && object.Status.Phase != cachev1alpha1.CachedResourcePhaseDeleted {
		deleted, err := c.empty(ctx, object)
		if deleted && err == nil {
			err = c.release(ctx, c.publisher(client.KeyOf(object)))
		}
		if err != nil || !deleted {
			if err != nil { // reported in the condition
				klog.FromContext(ctx).V(2).Info("Failed to delete the replicas of a cached resource that is being deleted, retrying", "err", err)
			}
			_, failed := c.commit(ctx, object, deleting(object, err))
			return reconcile.Result{RequeueAfter: recheckDelayFor(object)}, reconcile.IgnoreNotFound(failed)
		}
	}
	updated := object.DeepCopy()
	updated.Status.Phase = cachev1alpha1.CachedResourcePhaseDeleted
	updated.Status.ResourceCounts = nil
	if object, err = c.commit(ctx, object, updated); err != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	updated = object.DeepCopy()
	updated.Finalizers = slices.DeleteFunc(updated.Finalizers, func(f string) bool { return f == cachev1alpha1.CachedResourceFinalizer })
	_, err = c.commit(ctx, object, updated)
	c.watched.forget(client.KeyOf(object))
	return reconcile.Result{}, reconcile.IgnoreNotFound(err)
}

// recheckDelayFor returns the delay before the next check for replicas, which grows with the duration of the deletion.
func recheckDelayFor(object *cachev1alpha1.CachedResource) time.Duration {
	return min(max(time.Since(object.DeletionTimestamp.Time)/8, minSoon), maxSoon)
}

// deleting reports that the replicas are being deleted, and whether this currently fails.
func deleting(object *cachev1alpha1.CachedResource, err error) *cachev1alpha1.CachedResource {
	updated, message := object.DeepCopy(), "Its replicas are being deleted"
	if err != nil {
		message += ". The cache server is unreachable or has not deleted them yet, retrying"
	}
	updated.Status.Phase = cachev1alpha1.CachedResourcePhaseDeleting
	conditions.MarkFalse(updated, cachev1alpha1.ReplicationStarted, cachev1alpha1.CachedResourceValidDeleting, conditionsv1alpha1.ConditionSeverityInfo, "%s", message)
	return updated
}

// empty selects no objects for replication and reports whether all replicas have been deleted.
func (c *controller) empty(ctx context.Context, object *cachev1alpha1.CachedResource) (deleted bool, err error) {
	if !mayHaveReplicas(object) || c.sharesReplicas(object) {
		return true, nil // there were no replicas, or they belong to another cached resource
	}
	p, err := c.publication(object, Served{Kind: object.Annotations[apis.CachedKindAnnotation]})
	if err != nil {
		return false, err
	}
	if c.dropPublished(p.Replicated().GroupResource()) {
		return false, nil
	}
	publisher := c.publisher(client.KeyOf(object))
	if replicated, _, ok := c.Publications.Published(publisher); ok && replicated == p.Replicated() {
		c.Publications.Withdraw(publisher, p.Revision)
	} else {
		// E.g. after a restart. If this fails because the identity is used for another API, that has replaced our replicas.
		p.Selector = nil
		_ = c.Publications.Publish(publisher, p)
	}
	if err := c.Table.Ensure(p.Replicated()); err != nil {
		return false, nil //nolint:nilerr // it is being removed, with the replicas
	}
	return c.deleted(ctx, object)
}

// release removes the replicated resource if publisher is its last publisher, and forgets the publisher.
func (c *controller) release(ctx context.Context, publisher apis.Publisher) error {
	replicated, by, ok := c.Publications.Published(publisher)
	if !ok {
		return nil
	}
	if by == 1 {
		if c.dropPublished(replicated.GroupResource()) {
			return fmt.Errorf("not all publishers of %s have been observed yet", replicated.GroupResource())
		}
		ctx, cancel := context.WithTimeout(ctx, removeTimeout)
		defer cancel()
		if err := c.Table.Remove(ctx, replicated.GroupResource()); err != nil {
			return err
		}
		if _, by, _ = c.Publications.Published(publisher); by > 1 { // published concurrently
			if err := c.Table.Ensure(replicated); err != nil {
				return err
			}
		}
	}
	c.Publications.Forget(publisher)
	return nil
}

// commit avoids creating a client if nothing has changed, which is the common case.
func (c *controller) commit(ctx context.Context, old, updated *cachev1alpha1.CachedResource) (*cachev1alpha1.CachedResource, error) {
	if equality.Semantic.DeepEqual(old, updated) {
		return updated, nil
	}
	return c.latest.Commit(ctx, reconcile.Committer(c.Local, c.Resource), old, updated)
}

// objectChanges requeues cached resources after writes of their objects or secrets.
func (c *controller) objectChanges(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return c.Store.Listen(func(key string) {
		all, secret := c.watched.notify(key)
		for _, key := range all {
			if secret {
				queue.Add(key)
			} else {
				queue.AddAfter(key, recountDelay)
			}
		}
	}), nil
}

// identify sets the identity of a cached resource from its secret. It creates the default secret if necessary.
func (c *controller) identify(ctx context.Context, object *cachev1alpha1.CachedResource) error {
	key := client.KeyOf(object)
	if conditions.IsTrue(object, cachev1alpha1.CachedResourceIdentityValid) && c.watched.verified(key) {
		return nil
	}
	verified := c.watched.verify(key)
	ref := apis.CachedSecretOf(object)
	scope := c.Local.Cluster(logicalcluster.From(object).Path())
	secret, err := kinds.Secrets.InNamespace(scope, ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	named := object.Spec.Identity != nil && object.Spec.Identity.SecretRef != nil
	if apierrors.IsNotFound(err) && object.Status.IdentityHash == "" && (!named || ref == apis.DefaultSecret(object.Name)) {
		if secret, err = secrets.Create(ctx, scope, apis.NewSecret(ref)); err != nil {
			conditions.MarkFalse(object, cachev1alpha1.CachedResourceIdentityValid, cachev1alpha1.IdentityGenerationFailedReason, conditionsv1alpha1.ConditionSeverityError,
				"The secret %s/%s cannot be created, retrying: %v", ref.Namespace, ref.Name, err)
			return nil
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	if err != nil {
		secret = nil
	}
	if problem := verify(object, ref, secret); problem != "" {
		conditions.MarkFalse(object, cachev1alpha1.CachedResourceIdentityValid, cachev1alpha1.IdentityVerificationFailedReason, conditionsv1alpha1.ConditionSeverityError, "%s", problem)
		return nil
	}
	conditions.MarkTrue(object, cachev1alpha1.CachedResourceIdentityValid)
	verified()
	return nil
}
