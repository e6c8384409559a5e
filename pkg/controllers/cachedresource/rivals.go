package cachedresource

import (
	"cmp"
	"context"
	"iter"
	"slices"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

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

// takesPrecedence reports whether a cached resource takes precedence over another one for the same resource in the same logical
// cluster. Admission rejects the second one, unless both are created simultaneously, e.g. by requests to two replicas of
// the shard. The order depends only on stored state and does not change after a restart, so that replicas are not deleted
// in favor of another cached resource.
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

// rivalsOf enqueues cached resources when another one for the same resource changes.
func (c *controller) rivalsOf(all *client.Informer[*cachev1alpha1.CachedResource]) reconcile.Source[client.Key] {
	return reconcile.FromInformer(all, func(changed *cachev1alpha1.CachedResource) (rivals []client.Key) {
		for _, other := range c.Objects.Lister().Cluster(client.KeyOf(changed).Cluster).List(nil) {
			if other.UID != changed.UID && apis.CachedResourceOf(other) == apis.CachedResourceOf(changed) {
				rivals = append(rivals, client.KeyOf(other))
			}
		}
		return rivals
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

// incomplete reports whether some cached resources that had replicas of a resource at the start have not been published yet. Until
// they are, replicas must not be written or deleted: those of unpublished selections would be considered obsolete, and objects with
// another API or kind would replace them.
func (c *controller) incomplete(resource schema.GroupResource) bool {
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
