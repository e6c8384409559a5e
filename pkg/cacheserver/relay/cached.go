package relay

import (
	"time"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// removalTimeout limits the deletion of the replicas of a CachedResource, before it is retried.
const removalTimeout = time.Minute

// cachedResources relays the resources that CachedResources select, as long as one of these exists here. CachedResources
// are relayed themselves, so that nothing depends on the current content of the other cache server. A regional
// CachedResource is not relayed, and neither are its objects.
type cachedResources struct {
	informers []*client.Informer[*cachev1alpha1.CachedResource]
}

func newCachedResources(replicas client.Scope) *cachedResources {
	return &cachedResources{[]*client.Informer[*cachev1alpha1.CachedResource]{
		kinds.CachedResources.Informer(replicas, client.InformerOptions[*cachev1alpha1.CachedResource]{}),
		kinds.ClusterCachedResources.Informer(replicas, client.InformerOptions[*cachev1alpha1.CachedResource]{}),
	}}
}

// of returns the resources that the CachedResources of each shard select, or nil until they are loaded.
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
