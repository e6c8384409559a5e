package relay

import (
	"context"
	"time"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/request"
)

// removalTimeout is how long the replicas may take that a cached resource leaves, before they are
// tried to be deleted anew.
const removalTimeout = time.Minute

// cachedResources has what cached resources select relayed, as long as one of them is here that
// says so. They are relayed themselves: nothing depends on what the other cache server has
// now. One that is regional is not here, and neither is what only such ones select.
type cachedResources struct {
	informers []*client.Informer[*cachev1alpha1.CachedResource]
}

func newCachedResources(replicas client.Scope) *cachedResources {
	return &cachedResources{[]*client.Informer[*cachev1alpha1.CachedResource]{
		kinds.CachedResources.Informer(replicas, client.InformerOptions[*cachev1alpha1.CachedResource]{}),
		kinds.ClusterCachedResources.Informer(replicas, client.InformerOptions[*cachev1alpha1.CachedResource]{}),
	}}
}

// of returns what the cached resources of each shard select; nil as long as that is not known.
func (c *cachedResources) of() map[string]sets.Set[schema.GroupVersionResource] {
	all := map[string]sets.Set[schema.GroupVersionResource]{}
	for _, informer := range c.informers {
		if !informer.HasSynced() {
			return nil
		}
		for _, cached := range informer.Lister().List(nil) {
			if cached.Annotations[apis.CachedKindAnnotation] == "" || cached.Annotations[apis.CachedScopeAnnotation] != string(apiextensionsv1.ClusterScoped) || !request.ValidIdentity(cached.Status.IdentityHash) {
				continue
			}
			shard := informer.KeyOf(cached).Shard
			if all[shard] == nil {
				all[shard] = sets.New[schema.GroupVersionResource]()
			}
			all[shard].Insert(apis.ReplicatedOf(cached))
		}
	}
	return all
}

// follow has the table of a shard have what its cached resources select.
func (now *relayedShard) follow(shard string, wanted sets.Set[schema.GroupVersionResource]) {
	ctx := now.ctx
	logger := klog.FromContext(ctx).WithValues("name", shard)
	for resource := range wanted.Difference(now.cached) {
		err := now.table.Add(replication.Resource{GroupVersionResource: resource, Filter: replication.OfInstallation})
		if err != nil { // it is being removed
			logger.V(2).Info("What a cached resource selects is not relayed yet", "err", err)
			continue
		}
		now.cached.Insert(resource)
	}
	for resource := range now.cached.Difference(wanted) {
		now.cached.Delete(resource)
		now.removing.Go(func() {
			for ctx.Err() == nil {
				removing, cancel := context.WithTimeout(ctx, removalTimeout)
				err := now.table.Remove(removing, resource.GroupResource())
				cancel()
				if err == nil {
					return
				}
				logger.V(2).Info("What a cached resource has selected is not deleted yet", "err", err)
			}
		})
	}
}
