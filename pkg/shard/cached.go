package shard

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/controllers/cachedresource"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/virtual/replication"
)

// mountStore implements mount.Store.
type mountStore struct {
	*usage.Counter
	*customresource.Server
}

// cachedStore implements cachedresource.Store.
type cachedStore struct {
	*usage.Counter
	of *customresource.Server
}

func (s *objectServers) cachedObjects() controllers.Cached {
	return controllers.Cached{Store: cachedStore{s.usage, s.customResources}, Publications: s.cached, Limit: s.options.MaxCachedObjects, LimitBytes: s.options.MaxCachedBytes}
}

// newReplicas returns the replicas of cached resources for consumers on this shard.
func (s *accessRules) newReplicas(bound *bindings.Index) *replication.Replicas {
	i := s.informers
	var cache *client.Factory
	if s.sources.Replicas != nil {
		cache = s.sources.Replicas.Factory()
	}
	return replication.NewReplicationVirtualWorkspace(replication.Config{
		Cache: cache, Exports: i.APIExports, Slices: i.CachedSlices, ClusterSlices: i.ClusterCachedSlices,
		Cached: i.CachedResources, ClusterCached: i.ClusterCachedResources,
		Consumed: bound.Consumed, FollowConsumers: bound.FollowConsumers,
		Kept: s.cachedSnapshots(),
	})
}

func (s cachedStore) Bytes(cluster logicalcluster.Name) (int64, bool) {
	used, known := s.Of(cluster)
	return used.Bytes, known
}

func (s cachedStore) Each(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource, visit func(cachedresource.Stored)) error {
	d, _, err := s.of.Definition(ctx, cluster, resource)
	if err != nil || d == nil {
		return err
	}
	return s.of.Each(ctx, cluster, d, func(o *packed.Object) {
		visit(cachedresource.Stored{Name: o.GetName(), UID: o.GetUID(), Created: o.GetCreationTimestamp(), Labels: o.GetLabels(), Bytes: o.Bytes()})
	})
}

// Served implements cachedresource.Store. Objects of a bound API are converted for wildcard requests. Objects of a
// CustomResourceDefinition are read as they are stored.
func (s cachedStore) Served(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupVersionResource) (cachedresource.Served, bool, error) {
	d, prefix, err := s.of.Definition(ctx, cluster, resource)
	if err != nil || d == nil || s.of.BuiltIn(ctx, resource.GroupResource()) {
		return cachedresource.Served{}, false, err
	}
	conversion := d.Schema.Spec().Conversion
	return cachedresource.Served{
		Kind: d.Schema.Names().Kind, Namespaced: d.Schema.Spec().Scope == apiextensionsv1.NamespaceScoped, API: d.Identity, Prefix: prefix,
		Converted: d.Identity == "" && conversion != nil && conversion.Strategy == apiextensionsv1.WebhookConverter && d.Schema.StoredVersion() != resource.Version,
	}, true, nil
}
