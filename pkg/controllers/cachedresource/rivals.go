package cachedresource

import (
	"cmp"
	"iter"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// names are those of the resource, in the order of Config.All.
var names = [...]string{apis.CachedResources, apis.ClusterCachedResources}

// others are the other cached resources of a logical cluster, by either name.
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

// begun reports whether caches may have replicas of a cached resource.
func begun(object *cachev1alpha1.CachedResource) bool {
	return object.Annotations[apis.CachedKindAnnotation] != "" && object.Status.IdentityHash != ""
}

// first reports whether a cached resource comes before another one for the same resource in the same logical
// cluster. Admission refuses the second one, unless both are made at the same moment, maybe by requests to two
// replicas of the shard. What says it is stored, so that it is the same after a restart: nobody's replicas are
// taken away for somebody else's.
func first(a, b *cachev1alpha1.CachedResource) bool {
	if begun(a) != begun(b) {
		return begun(a)
	}
	return older(a, b)
}

// already returns what has the resource of a cached resource replicated instead, until it is gone; nil if nothing has.
func (c *controller) already(object *cachev1alpha1.CachedResource) *apis.CachedAlreadyError {
	resource := apis.CachedResourceOf(object)
	for by, other := range c.others(object) {
		if apis.CachedResourceOf(other) == resource && first(other, object) {
			return &apis.CachedAlreadyError{Resource: resource, By: by}
		}
	}
	return nil
}

// says has a cached resource say that another one has its resource replicated.
func says(object *cachev1alpha1.CachedResource, already *apis.CachedAlreadyError) {
	stopped(object, reasonAlreadyCached, conditionsv1alpha1.ConditionSeverityError,
		already.Error()+": delete this one, or that one with its replicas, after which this one goes on by itself")
}

// sharedByFirst reports whether what is replicated under the identity of a cached resource, in its logical cluster, is what
// another one selects.
func (c *controller) sharedByFirst(object *cachev1alpha1.CachedResource) bool {
	resource := apis.CachedResourceOf(object)
	for _, other := range c.others(object) {
		if apis.CachedResourceOf(other) == resource && other.Status.IdentityHash == object.Status.IdentityHash && first(other, object) {
			return true
		}
	}
	return false
}

// rivalsOf has cached resources looked at when another one for the same resource comes or goes.
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
