// Package cachedresource leads cached resources on, by both names that they have: it finds what
// they name, gives them an identity, has the objects that they select replicated to the cache
// server, and takes the replicas away before a cached resource goes.
//
//	spec.identity ─► secret ─► status.identityHash ─┐
//	what the logical cluster serves: ResourceValid ─┼─► Publications: what is read to be replicated
//	how many objects there may be ──────────────────┘   Table: a line of <resource>:<identity>
//	                                                    ◄─ counts here and on the cache server
//
// What is decided about one (identity.go, resource.go, counts.go) is apart from what it takes to
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// Name is the name of the controller of CachedResources.
	Name = "cachedresource"
	// ClusterName is that of ClusterCachedResources.
	ClusterName = "clustercachedresource"

	// lookAgain is how often something is looked at that nobody tells of, such as whether the
	// resource is still served.
	lookAgain = time.Minute
	// countAgain is how often objects are counted that nobody has told of, by a request to the shard and one
	// to a cache server: on both they are compared all the time, so that counts differ for a moment only.
	countAgain = time.Hour
	// minSoon and maxSoon bound the time between two looks whether replicas are gone.
	minSoon, maxSoon = 20 * time.Millisecond, 5 * time.Second
	// removeTimeout bounds one wait until replicas are deleted.
	removeTimeout = 10 * time.Second
)

// Served is what a logical cluster serves under the name of a resource.
type Served struct {
	Kind       string
	Namespaced bool
	// API is the identity of the export that it is bound from, if it is.
	API string
	// Converted is set if a webhook converts what is stored into the version that was asked for.
	Converted bool
	// Prefix is that of the keys of its objects.
	Prefix string
}

// Stored is what is to be known of an object.
type Stored struct {
	Name    string
	UID     types.UID
	Created metav1.Time
	Labels  map[string]string
	Bytes   int64
}

// Store is what the shard stores and serves.
type Store interface {
	// Served returns what a logical cluster serves, false if it serves no such resource.
	Served(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource) (Served, bool, error)
	// Bytes returns how many bytes a logical cluster stores in all, false if that is not known yet.
	Bytes(cluster logicalcluster.Name) (int64, bool)
	// Each calls visit for each object of a resource that a logical cluster serves.
	Each(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, visit func(Stored)) error
	// Listen has changed called with the key of each object that is written, or with none when
	// any may have been, until stop is called.
	Listen(changed func(key string)) (stop func())
}

// Publications are what is read to be replicated.
type Publications interface {
	Publish(publisher apis.Publisher, p *apis.Publication) error
	Published(publisher apis.Publisher) (replicated schema.GroupVersionResource, by int, ok bool)
	Bytes(publisher apis.Publisher) int64
	Withdraw(publisher apis.Publisher, revision uint64)
	Forget(publisher apis.Publisher)
}

// Table is what is replicated. Ensure has a resource replicated that may be already, Remove ends
// that and returns when its replicas are gone.
type Table interface {
	Ensure(resource schema.GroupVersionResource) error
	Remove(ctx context.Context, resource schema.GroupResource) error
}

// Config is what the controller needs.
type Config struct {
	// Resource is the one that the controller is for, and Objects are those of all logical
	// clusters of the shard.
	Resource client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]
	Objects  *client.Informer[*cachev1alpha1.CachedResource]
	// All are those of both names, CachedResources first.
	All []*client.Informer[*cachev1alpha1.CachedResource]
	// Local reaches the shard itself as system:masters, and Cache what it has on the cache server;
	// nil where there is none.
	Local, Cache *client.Factory

	Store        Store
	Publications Publications
	Table        Table
	// Limit is how many objects a logical cluster may have replicated, and LimitBytes how many bytes
	// these may have; 0 is any number.
	Limit      int
	LimitBytes int64
}

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

type controller struct {
	Config

	latest  reconcile.Latest[*cachev1alpha1.CachedResource]
	watched *watched
	had     had
}

func (c *controller) publisher(key client.Key) apis.Publisher {
	return apis.Publisher{Resource: c.Resource.Resource, Cluster: key.Cluster, Name: key.Name}
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

// stopped says in a cached resource why nothing of it is to be replicated.
func stopped(object *cachev1alpha1.CachedResource, reason string, severity conditionsv1alpha1.ConditionSeverity, why string) {
	if object.Status.Phase == cachev1alpha1.CachedResourcePhaseReady {
		object.Status.Phase = cachev1alpha1.CachedResourcePhaseInitializing
	}
	conditions.MarkFalse(object, cachev1alpha1.ReplicationStarted, reason, severity, "%s", why)
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
