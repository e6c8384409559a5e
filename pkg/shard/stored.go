package shard

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/controllers/cachedresource"
	"github.com/shardplane/shardplane/pkg/controllers/garbagecollector"
	logicalclustercontroller "github.com/shardplane/shardplane/pkg/controllers/logicalcluster"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
	"github.com/shardplane/shardplane/pkg/tenancy/toplevel"
	"github.com/shardplane/shardplane/pkg/virtual/replication"
)

const (
	maxUnserved = 10_000
	// countDelay is how long the count of stored objects may lag behind.
	countDelay = 200 * time.Millisecond
)

var logicalClustersPrefix = storage.ResourcePrefix(corev1alpha1.Resource("logicalclusters")) + "/"

// apiDeletes must be deleted through the API, because their deletion has further effects or waits for finalizers.
var apiDeletes = []schema.GroupResource{
	kinds.Namespaces.GroupResource(), kinds.CustomResourceDefinitions.GroupResource(),
	kinds.Workspaces.GroupResource(), kinds.APIBindings.GroupResource(),
}

func (s *objectServers) unreadableObjects() logicalclustercontroller.Unreadable {
	return logicalclustercontroller.Unreadable{
		Describe: func(ctx context.Context, cluster logicalcluster.Name) (string, error) {
			found, err := s.backend.Unreadable(ctx, cluster, "")
			return unreadable.Describe(found), err
		},
		Follow: s.unreadable.Follow,
	}
}

// anyStored reports for each resource whether it may have objects. It returns true for resources whose keys are unknown.
func (s *objectServers) anyStored(ctx context.Context, cluster logicalcluster.Name, namespace string, resources []schema.GroupResource) ([]bool, error) {
	may := make([]bool, len(resources))
	prefixes, at := make([]string, 0, len(resources)), make([]int, 0, len(resources))
	for i, resource := range resources {
		prefix, known, err := s.customResources.KeysOf(ctx, cluster, namespace, resource)
		if err != nil {
			return nil, err
		}
		if may[i] = !known; known {
			prefixes, at = append(prefixes, prefix), append(at, i)
		}
	}
	found, err := s.backend.Any(ctx, prefixes)
	if err != nil {
		return nil, err
	}
	for i := range found {
		may[at[i]] = found[i]
	}
	return may, nil
}

// deleteFree deletes the objects without finalizers and reports for each resource whether it may have others. It
// bypasses admission, validation and audit. The namespace or logical cluster must be terminating.
func (s *objectServers) deleteFree(ctx context.Context, cluster logicalcluster.Name, namespace string, resources []schema.GroupResource) ([]bool, error) {
	if !request.ValidClusterName(cluster) {
		return nil, fmt.Errorf("invalid name of a logical cluster: %q", cluster)
	}
	others := make([]bool, len(resources))
	for i, resource := range resources {
		prefix, known, err := s.customResources.KeysOf(ctx, cluster, namespace, resource)
		if others[i] = true; err == nil && known && !slices.Contains(apiDeletes, resource) {
			others[i], err = s.backend.DeleteFree(ctx, prefix)
		}
		if err != nil {
			return nil, err
		}
	}
	return others, nil
}

// deleteUnserved deletes a batch of stored objects of a logical cluster that no API serves, because their definition
// or binding was removed first. It does not delete the LogicalCluster. The usage counter shows cheaply whether there
// are any.
func (s *objectServers) deleteUnserved(ctx context.Context, cluster logicalcluster.Name) (deleted int64, err error) {
	err = wait.PollUntilContextTimeout(ctx, time.Millisecond, countDelay, true, func(context.Context) (bool, error) {
		stored, known := s.usage.Of(cluster)
		return known && stored.Objects <= 1, nil
	})
	if err == nil || ctx.Err() != nil {
		return 0, ctx.Err()
	}
	prefixes, known := s.usage.Prefixes()
	if !known {
		return 0, errors.New("the stored objects are not counted yet")
	}
	prefixes = slices.DeleteFunc(prefixes, func(prefix string) bool { return prefix == logicalClustersPrefix })
	of := make([]string, len(prefixes))
	for i, prefix := range prefixes {
		of[i] = storage.Key(prefix, "", cluster, "", "")
	}
	found, err := s.backend.Any(ctx, of)
	if err != nil {
		return 0, err
	}
	for i, prefix := range prefixes {
		if !found[i] || deleted == maxUnserved {
			continue
		}
		n, err := s.backend.DeleteAll(ctx, prefix, cluster, maxUnserved-deleted)
		deleted += n
		if err != nil {
			return deleted, err
		}
		klog.FromContext(ctx).Info("Deleted stored objects of an API that is no longer served in a terminating logical cluster", "logicalCluster", cluster, "below", prefix, "objects", n)
	}
	return deleted, nil
}

func (s *objectServers) garbage(loopback *rest.Config) (*garbagecollector.Config, error) {
	if !s.options.Garbage.Enabled {
		return nil, nil //nolint:nilnil // it is disabled
	}
	as := rest.CopyConfig(loopback)
	as.Impersonate = rest.ImpersonationConfig{UserName: garbagecollector.Username, Groups: []string{user.SystemPrivilegedGroup}}
	deleting, err := s.factory(as)
	if err != nil {
		return nil, fmt.Errorf("client of the garbage collector: %w", err)
	}
	return &garbagecollector.Config{
		Local: s.sources.Local, Deleting: deleting, InitialDelay: s.options.Garbage.InitialDelay,
		Store: storedObjects{s.usage, s.backend}, Kinds: s.customResources, Metrics: s.metrics,
	}, nil
}

type storedObjects struct {
	*usage.Counter
	*storage.Backend
}

// load returns the load of the shard, or nil while objects have not been counted yet.
func (s *installation) load() *shardload.Load {
	total, known := s.usage.Total()
	if !known {
		return nil
	}
	o := s.options.Capacity
	inUse, quota := s.usage.Storage()
	storage := shardload.Amount{Used: inUse, Limit: o.MaxStorage}
	if quota > 0 && (storage.Limit == 0 || quota < storage.Limit) {
		storage.Limit = quota
	}
	return &shardload.Load{
		Workspaces: shardload.Amount{Used: s.local.countWorkspaces(), Limit: o.MaxWorkspaces},
		Objects:    shardload.Amount{Used: total.Objects, Limit: o.MaxObjects},
		Storage:    storage,
		Full:       s.usage.Full(),
		Caches:     s.connections.cache.Reasons(),
	}
}

// countWorkspaces returns the number of logical clusters that belong to a workspace.
func (l *local) countWorkspaces() int64 {
	n := l.logicalClusters.Lister().Len()
	for _, system := range []logicalcluster.Name{core.RootCluster, tenancy.AdminCluster, tenancy.HomesCluster} {
		if l.has(system) {
			n--
		}
	}
	return int64(n)
}

func newOwners(counter *usage.Counter, informers *controllers.Informers, local *local) *toplevel.Sums {
	return toplevel.NewTopLevelSums(toplevel.Config{
		Stored: func() (iter.Seq2[logicalcluster.Name, subtrees.Amount], bool) {
			all, known := amounts(counter)
			return all, known && local.logicalClusters.HasSynced()
		},
		PathOf: func(cluster logicalcluster.Name) string {
			if lc := local.get(cluster); lc != nil {
				return tenancy.PathOf(lc).String()
			}
			return ""
		},
		Workspaces: func() map[logicalcluster.Name]int64 {
			counts := map[logicalcluster.Name]int64{}
			for _, ws := range informers.Workspaces.Lister().List(nil) {
				counts[logicalcluster.From(ws)]++
			}
			return counts
		},
	})
}

func newSubtrees(shard string, counter *usage.Counter, informers *controllers.Informers) *subtrees.Sums {
	sums := subtrees.NewSubtreeSums(subtrees.Config{
		Self:            shard,
		LogicalClusters: informers.LogicalClusters,
		Stored:          func() (iter.Seq2[logicalcluster.Name, subtrees.Amount], bool) { return amounts(counter) },
		Others:          informers.SubtreeUsages,
		ShardState:      tenancy.ShardStateOf(informers.Shards),
	})
	counter.Listen(func(string) { sums.Changed() })
	return sums
}

func amounts(counter *usage.Counter) (iter.Seq2[logicalcluster.Name, subtrees.Amount], bool) {
	all, known := counter.All()
	return func(yield func(logicalcluster.Name, subtrees.Amount) bool) {
		for cluster, used := range all {
			if !yield(cluster, subtrees.Amount(used)) {
				return
			}
		}
	}, known
}

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

// cachedSnapshots saves the cached resources of consumers, but only in a data directory. Tenants could fill an etcd,
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
