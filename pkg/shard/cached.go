package shard

import (
	"context"
	"path/filepath"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/cachedresource"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
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

func (s *installation) newReplicas(bound *bindings.Index) *replication.Replicas {
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

// Served implements cachedresource.Store. Only objects of a bound API are converted for wildcard requests.
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

// replicaSnapshot saves the replicas of other shards, so that the shard can start while these are unreachable.
func (s *installation) replicaSnapshot() *snapshot.Snapshot {
	config := s.snapshots()
	if config.Sources = s.informers.Replicas(); len(config.Sources) > 0 {
		config.Sources = append(config.Sources, s.remoteParams) // the parameters of replicated policies
	}
	if len(s.options.Etcd.Servers) > 0 {
		config.Store = s.etcd.Blob("shardplane-replicas")
	} else {
		config.Store = snapshot.File(filepath.Join(s.snapshotDirectory(), "snapshot.json"))
	}
	return snapshot.NewReplicaSnapshot(config)
}

// cachedSnapshots saves the cached resources of consumers, but only in a data directory: tenants could fill an etcd,
// because its history contains each version for some minutes.
func (s *storedData) cachedSnapshots() *snapshot.Directory {
	if len(s.options.Etcd.Servers) > 0 {
		return nil
	}
	return &snapshot.Directory{Path: filepath.Join(s.snapshotDirectory(), "cached"), Config: s.snapshots()}
}

func (s *storedData) snapshotDirectory() string {
	return filepath.Join(s.options.Etcd.DataDir, "replicas")
}

// snapshots returns the common configuration. Objects are encrypted like those of the same resource in etcd.
func (s *storedData) snapshots() snapshot.Config {
	config := snapshot.Config{Server: s.options.Name, Data: s.dataID, MaxAge: s.options.ReplicaSnapshotMaxAge}
	if s.options.Encryption.ConfigFile == "" {
		return config
	}
	transformer := s.encryption.Transformers().TransformerForResource
	bound := func(resource schema.GroupResource) value.Context {
		return value.DefaultContext("replicas of " + resource.String() + " on " + s.options.Name)
	}
	config.Seal = func(ctx context.Context, resource schema.GroupResource, content []byte) ([]byte, error) {
		return transformer(resource).TransformToStorage(ctx, content, bound(resource))
	}
	config.Open = func(ctx context.Context, resource schema.GroupResource, content []byte) ([]byte, error) {
		plain, _, err := transformer(resource).TransformFromStorage(ctx, content, bound(resource))
		return plain, err
	}
	return config
}
