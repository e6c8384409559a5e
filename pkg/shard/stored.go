package shard

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/controllers/garbagecollector"
	logicalclustercontroller "github.com/shardplane/shardplane/pkg/controllers/logicalcluster"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
	"github.com/shardplane/shardplane/pkg/tenancy/toplevel"
)

const (
	maxUnserved = 10_000
	// countDelay is how long the count of stored objects may lag behind.
	countDelay = 200 * time.Millisecond
)

var logicalClustersPrefix = storage.ResourcePrefix(corev1alpha1.Resource("logicalclusters")) + "/"

// apiDeletes are resources that must be deleted through the API, because their deletion has further effects or usually
// waits for finalizers.
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
// bypasses admission, validation and audit. Everything in the namespace or logical cluster must be being deleted.
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

// deleteUnserved deletes a batch of the stored objects of a logical cluster, except the LogicalCluster, that no API
// serves because their definition or binding was removed first. The usage counter shows cheaply whether there are any.
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
		klog.InfoS("Deleted stored objects of an API that is no longer served in a terminating logical cluster", "cluster", cluster, "below", prefix, "objects", n)
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
