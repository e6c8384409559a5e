package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	logicalclustercontroller "github.com/shardplane/shardplane/pkg/controllers/logicalcluster"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

const (
	// mostUnserved is how many objects that nobody serves are deleted at a time.
	mostUnserved = 10_000
	// countDelay is how long the count of what is stored may be behind, before it is taken
	// for what there is.
	countDelay = 200 * time.Millisecond
)

// logicalClustersPrefix starts the keys of LogicalClusters.
var logicalClustersPrefix = storage.ResourcePrefix(corev1alpha1.Resource("logicalclusters")) + "/"

// apiDeletes are the kinds whose deletion is more than that of a key, or which finalizers hold as a rule.
var apiDeletes = []schema.GroupResource{
	kinds.Namespaces.GroupResource(), kinds.CustomResourceDefinitions.GroupResource(),
	kinds.Workspaces.GroupResource(), kinds.APIBindings.GroupResource(),
}

// stored is what controllers ask, and delete, past the API.
func (s *objectServers) stored() purge.Stored {
	return purge.Stored{Any: s.anyStored, Free: s.deleteFree}
}

// unreadableObjects are what controllers report of objects that cannot be read.
func (s *objectServers) unreadableObjects() logicalclustercontroller.Unreadable {
	return logicalclustercontroller.Unreadable{
		Describe: func(ctx context.Context, cluster logicalcluster.Name) (string, error) {
			found, err := s.backend.Unreadable(ctx, cluster, "")
			return unreadable.Describe(found), err
		},
		Follow: s.unreadable.Follow,
	}
}

// anyStored says which resources may have objects: those of which etcd has some, and those that
// nobody knows to be there.
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

// deleteFree deletes the objects of some resources that nothing holds, and says which may have others. It is
// for what goes as a whole: admission, validation and audit do not see it.
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

// deleteUnserved deletes what a logical cluster has stored beside its LogicalCluster, some at a
// time, when all that is served there is gone: objects of kinds whose definition or binding went
// without them. It returns how many it deleted. The count of what is stored, which costs nothing to
// ask, tells that there are some, and etcd of which kinds.
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
		return 0, errors.New("what is stored is not counted yet")
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
		if !found[i] || deleted == mostUnserved {
			continue
		}
		n, err := s.backend.DeleteAll(ctx, prefix, cluster, mostUnserved-deleted)
		deleted += n
		if err != nil {
			return deleted, err
		}
		klog.InfoS("Deleted objects of a logical cluster that is being deleted, of a kind that nobody serves there any more", "cluster", cluster, "below", prefix, "objects", n)
	}
	return deleted, nil
}
