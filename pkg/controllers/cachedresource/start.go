package cachedresource

import (
	"context"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// replicates reports whether a cached resource has had replicas, as far as it has said, and may go on to have them.
func replicates(object *cachev1alpha1.CachedResource) bool {
	if object.DeletionTimestamp != nil || conditions.IsFalse(object, cachev1alpha1.CachedResourceValid) || conditions.GetReason(object, cachev1alpha1.ReplicationStarted) == reasonAlreadyCached {
		return false
	}
	counts := object.Status.ResourceCounts
	return begun(object) && (counts != nil && counts.Cache > 0 || conditions.IsTrue(object, cachev1alpha1.ReplicationStarted))
}

// remember notes which cached resources have replicas.
func (c *controller) remember(context.Context, reconcile.Queue[client.Key]) (func(), error) {
	c.had.mu.Lock()
	defer c.had.mu.Unlock()
	c.had.of = map[schema.GroupResource][]apis.Publisher{}
	for i, informer := range c.All {
		for _, object := range informer.Lister().List(nil) {
			if replicates(object) {
				key, resource := client.KeyOf(object), apis.ReplicatedOf(object).GroupResource()
				c.had.of[resource] = append(c.had.of[resource], apis.Publisher{Resource: names[i], Cluster: key.Cluster, Name: key.Name})
			}
		}
	}
	return func() {}, nil
}

// incomplete reports whether the Publications do not know all yet that had replicas under an identity when the
// controller began. Until they do, nothing is written or deleted under it: what others select would count as left
// over, and what has another API or kind would take their place.
func (c *controller) incomplete(resource schema.GroupResource) bool {
	c.had.mu.Lock()
	defer c.had.mu.Unlock()
	all := c.had.of[resource]
	for ; len(all) > 0; all = all[:len(all)-1] {
		last := all[len(all)-1]
		_, _, known := c.Publications.Published(last)
		object, err := c.All[index(last)].Lister().Get(client.Key{Cluster: last.Cluster, Name: last.Name})
		if !known && err == nil && replicates(object) && apis.ReplicatedOf(object).GroupResource() == resource {
			c.had.of[resource] = all
			return true
		}
	}
	delete(c.had.of, resource)
	return false
}

// index returns which of Config.All has a cached resource.
func index(of apis.Publisher) int {
	if of.Resource == names[0] {
		return 0
	}
	return 1
}
