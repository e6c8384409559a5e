// Package cachedresource leads cached resources on, by both names that they have: it finds what
// they name, gives them an identity, has the objects that they select replicated to the cache
// server, and takes the replicas away before a cached resource goes.
//
//	spec.identity ─► secret ─► status.identityHash ─┐
//	what the logical cluster serves: ResourceValid ─┼─► Publications: what is read to be replicated
//	how many objects there may be ──────────────────┘   Table: a line of <resource>:<identity>
//	                                                    ◄─ counts here and on the cache server
//
// What is decided about one (this file, resource.go, counts.go) is apart from what it takes to
// hear of changes (watch.go), from what was there before (start.go), and from which one of several for one
// resource counts (rivals.go).
package cachedresource

import (
	"context"
	"fmt"
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

// New returns the controller. Its keys are cached resources.
func New(config Config) *reconcile.Controller[client.Key] {
	c := &controller{Config: config, watched: newWatched()}
	name := Name
	if config.Resource.Resource == apis.ClusterCachedResources {
		name = ClusterName
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      name,
		Reconcile: c.reconcile,
		Sources:   []reconcile.Source[client.Key]{c.remember, reconcile.Keys(config.Objects), c.written, c.rivalsOf(config.All[0]), c.rivalsOf(config.All[1])},
	})
}

func (c *controller) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := c.Objects.Lister().Get(key)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	object, exists := c.latest.Of(key, cached, err == nil)
	switch {
	case !exists:
		c.watched.forget(key)
		return reconcile.Result{}, c.release(ctx, c.publisher(key))
	case object.DeletionTimestamp != nil:
		return c.finish(ctx, object)
	case c.Cache == nil:
		updated := object.DeepCopy()
		conditions.MarkFalse(updated, cachev1alpha1.ReplicationStarted, reasonNoCache, conditionsv1alpha1.ConditionSeverityError,
			"This installation has no cache server: nothing is replicated")
		_, err := c.commit(ctx, object, updated)
		return reconcile.Result{}, err
	}
	if !hasFinalizer(object) {
		// Before there is anything that it stands for.
		updated := object.DeepCopy()
		updated.Finalizers = append(updated.Finalizers, cachev1alpha1.CachedResourceFinalizer)
		if object, err = c.commit(ctx, object, updated); err != nil {
			return reconcile.Result{}, err
		}
	}
	updated := object.DeepCopy()
	result, problem := c.advance(ctx, updated)
	if _, err := c.commit(ctx, object, updated); err != nil {
		return reconcile.Result{}, err
	}
	return result, problem
}

// advance leads a cached resource to where it should be, and says so in it. What is wrong with it
// is in its conditions; an error is what keeps this server from finding that out.
func (c *controller) advance(ctx context.Context, object *cachev1alpha1.CachedResource) (reconcile.Result, error) {
	if object.Status.Phase == "" {
		object.Status.Phase = cachev1alpha1.CachedResourcePhaseInitializing
	}
	if already := c.already(object); already != nil {
		says(object, already)
		return reconcile.Result{Backoff: true}, c.withdraw(ctx, object)
	}
	key := client.KeyOf(object)
	c.watched.secret(key, secretKey(object))
	if err := c.identify(ctx, object); err != nil {
		return reconcile.Result{}, err
	}
	served, valid, err := c.serve(ctx, object)
	if err != nil {
		return reconcile.Result{}, err
	}
	c.watched.objects(key, served.Prefix)
	if !valid || object.Status.IdentityHash == "" {
		what := "ResourceValid"
		if valid {
			what = "IdentityValid"
		}
		stopped(object, reasonWaiting, conditionsv1alpha1.ConditionSeverityInfo, fmt.Sprintf("The condition %s says what is to be done first", what))
		return reconcile.Result{Backoff: true}, c.withdraw(ctx, object)
	}
	return c.replicate(ctx, object, served)
}

// withdraw has nothing of a cached resource replicated as long as it is not valid, or another one has the resource.
func (c *controller) withdraw(ctx context.Context, object *cachev1alpha1.CachedResource) error {
	publisher := c.publisher(client.KeyOf(object))
	counts := object.Status.ResourceCounts
	if _, _, ok := c.Publications.Published(publisher); !ok && (counts == nil || counts.Cache == 0) {
		return nil // nor was it before
	}
	gone, err := c.empty(ctx, object)
	if err != nil || !gone {
		return err
	}
	object.Status.ResourceCounts = &cachev1alpha1.ResourceCount{}
	return c.release(ctx, publisher)
}

// finish takes the replicas of a cached resource away that is being deleted, and lets it go.
func (c *controller) finish(ctx context.Context, object *cachev1alpha1.CachedResource) (reconcile.Result, error) {
	if !hasFinalizer(object) {
		return reconcile.Result{}, nil
	}
	var err error
	if phase := object.Status.Phase; phase != cachev1alpha1.CachedResourcePhaseDeleting && phase != cachev1alpha1.CachedResourcePhaseDeleted {
		if object, err = c.commit(ctx, object, deleting(object, nil)); err != nil {
			return reconcile.Result{}, ignoreNotFound(err)
		}
	}
	if c.Cache != nil && object.Status.Phase != cachev1alpha1.CachedResourcePhaseDeleted {
		if gone, err := c.takeAway(ctx, object); err != nil || !gone {
			if err != nil { // the cached resource says so
				klog.FromContext(ctx).V(2).Info("The replicas of a cached resource that is being deleted cannot be taken away yet", "err", err)
			}
			_, failed := c.commit(ctx, object, deleting(object, err))
			return reconcile.Result{RequeueAfter: soon(object)}, ignoreNotFound(failed)
		}
	}
	updated := object.DeepCopy()
	updated.Status.Phase = cachev1alpha1.CachedResourcePhaseDeleted
	updated.Status.ResourceCounts = nil
	if object, err = c.commit(ctx, object, updated); err != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	updated = object.DeepCopy()
	updated.Finalizers = without(updated.Finalizers, cachev1alpha1.CachedResourceFinalizer)
	_, err = c.commit(ctx, object, updated)
	c.watched.forget(client.KeyOf(object))
	return reconcile.Result{}, ignoreNotFound(err)
}

// soon returns when to look again whether the replicas of a cached resource that is being deleted are gone, of which
// nobody tells: the later the longer it takes, and soon enough when the cache server is back.
func soon(object *cachev1alpha1.CachedResource) time.Duration {
	return min(max(time.Since(object.DeletionTimestamp.Time)/8, minSoon), maxSoon)
}

// deleting returns a cached resource that says that its replicas are being deleted, and if something keeps them
// from that.
func deleting(object *cachev1alpha1.CachedResource, err error) *cachev1alpha1.CachedResource {
	updated, says := object.DeepCopy(), "Its replicas are being deleted"
	if err != nil {
		says += ". The cache server cannot be asked, or has not deleted them yet: it goes on by itself"
	}
	updated.Status.Phase = cachev1alpha1.CachedResourcePhaseDeleting
	conditions.MarkFalse(updated, cachev1alpha1.ReplicationStarted, cachev1alpha1.CachedResourceValidDeleting, conditionsv1alpha1.ConditionSeverityInfo, "%s", says)
	return updated
}

// takeAway has nothing of a cached resource replicated any more, and reports whether no replica is left.
func (c *controller) takeAway(ctx context.Context, object *cachev1alpha1.CachedResource) (gone bool, err error) {
	if gone, err = c.empty(ctx, object); err != nil || !gone {
		return false, err
	}
	err = c.release(ctx, c.publisher(client.KeyOf(object)))
	return err == nil, err
}

// empty has no object of a cached resource replicated, and reports whether no replica is left.
func (c *controller) empty(ctx context.Context, object *cachev1alpha1.CachedResource) (gone bool, err error) {
	kind := object.Annotations[apis.CachedKindAnnotation]
	if !begun(object) || c.sharedByFirst(object) {
		return true, nil // the cache server has not known what they would be, or they are those of another
	}
	p, err := c.publication(object, Served{Kind: kind})
	if err != nil {
		return false, err
	}
	if c.incomplete(p.Replicated().GroupResource()) {
		return false, nil
	}
	publisher := c.publisher(client.KeyOf(object))
	if replicated, _, ok := c.Publications.Published(publisher); ok && replicated == p.Replicated() {
		c.Publications.Withdraw(publisher, p.Revision)
	} else {
		// As after a restart. If others have another API replicated so, that takes ours away.
		p.Selector = nil
		_ = c.Publications.Publish(publisher, p)
	}
	if err := c.Table.Ensure(p.Replicated()); err != nil {
		return false, nil //nolint:nilerr // it is being removed: that takes the replicas away
	}
	return c.gone(ctx, object)
}

// release ends the replication of what nobody has replicated any more but publisher, and forgets
// that.
func (c *controller) release(ctx context.Context, publisher apis.Publisher) error {
	replicated, by, ok := c.Publications.Published(publisher)
	if !ok {
		return nil
	}
	if by == 1 {
		if c.incomplete(replicated.GroupResource()) {
			return fmt.Errorf("not all that have replicas of %s are known yet", replicated.GroupResource())
		}
		ctx, cancel := context.WithTimeout(ctx, removeTimeout)
		defer cancel()
		if err := c.Table.Remove(ctx, replicated.GroupResource()); err != nil {
			return err
		}
		if _, by, _ = c.Publications.Published(publisher); by > 1 { // somebody came meanwhile
			if err := c.Table.Ensure(replicated); err != nil {
				return err
			}
		}
	}
	c.Publications.Forget(publisher)
	return nil
}

// commit writes what has changed. Mostly nothing has, and to make a client costs more than to find that out.
func (c *controller) commit(ctx context.Context, old, updated *cachev1alpha1.CachedResource) (*cachev1alpha1.CachedResource, error) {
	if equality.Semantic.DeepEqual(old, updated) {
		return updated, nil
	}
	written, err := reconcile.Commit(ctx, c.Resource.In(c.Local.Cluster(logicalcluster.From(old).Path())), old, updated)
	if written != nil && written.ResourceVersion != old.ResourceVersion {
		c.latest.Wrote(written)
	}
	return written, err
}

// written has cached resources looked at when their objects or secrets are written.
func (c *controller) written(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return c.Store.Listen(func(key string) {
		all, secret := c.watched.tell(key)
		for _, key := range all {
			if secret {
				queue.Add(key)
			} else {
				queue.AddAfter(key, recount)
			}
		}
	}), nil
}

// secretKey returns where the secret is with the identity of a cached resource.
func secretKey(object *cachev1alpha1.CachedResource) client.Key {
	ref := apis.CachedSecretOf(object)
	return client.Key{Cluster: logicalcluster.From(object), Namespace: ref.Namespace, Name: ref.Name}
}

// identify brings the identity of a cached resource to what its secret says, which is made if it
// names none.
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
				"The secret %s/%s cannot be made, which is tried again: %v", ref.Namespace, ref.Name, err)
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
