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
