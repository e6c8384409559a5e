package controllers

import (
	"context"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/cachedresource"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication"
)

// cachedTable implements cachedresource.Table.
type cachedTable struct {
	*replication.Table
	of Publications
}

// Ensure implements cachedresource.Table. What is read is what is selected already, unless the
// identity is that of an export as well: then it is that of all its consumers.
func (t cachedTable) Ensure(resource schema.GroupVersionResource) error {
	return t.Have(replication.Resource{
		GroupVersionResource: resource,
		Filter:               func(obj metav1.Object) bool { return t.of.Selects(resource.GroupResource(), obj) },
	})
}

// cachedResources are the controllers of both names. They have the replication of one process
// follow what they say.
func cachedResources() []reconcile.Descriptor[Deps] {
	return []reconcile.Descriptor[Deps]{
		{Name: cachedresource.Name, Placement: reconcile.OnLeader, New: newCachedResource(kinds.CachedResources)},
		{Name: cachedresource.ClusterName, Placement: reconcile.OnLeader, New: newCachedResource(kinds.ClusterCachedResources)},
	}
}

func newCachedResource(resource client.Resource[*cachev1alpha1.CachedResource, *cachev1alpha1.CachedResourceList]) func(Deps) (reconcile.Made, error) {
	return func(d Deps) (reconcile.Made, error) {
		i := d.Informers
		all := []*client.Informer[*cachev1alpha1.CachedResource]{i.CachedResources.Own(), i.ClusterCachedResources.Own()}
		config := cachedresource.Config{
			Resource: resource, Objects: all[0], All: all, Local: d.Local,
			Store: d.Cached.Store, Publications: d.Cached.Publications, Table: cachedTable{d.Replicated, d.Cached.Publications}, Limit: d.Cached.Limit, LimitBytes: d.Cached.LimitBytes,
		}
		if resource.Resource == kinds.ClusterCachedResources.Resource {
			config.Objects = all[1]
		}
		if d.Cache != nil {
			config.Cache = d.Cache.Shard(d.ShardName)
		}
		return after(cachedresource.New(config), all[0], all[1], i.LogicalClusters), nil
	}
}

var _ cachedresource.Table = cachedTable{}

// Remove implements cachedresource.Table.
func (t cachedTable) Remove(ctx context.Context, resource schema.GroupResource) error {
	return t.Table.Remove(ctx, resource)
}
