package workspace

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// orphanAge is up to what age a LogicalCluster without a Workspace is deleted. A
// create that was thought to be lost arrives within moments; what is older, and
// has no Workspace, rather tells that this shard has lost data.
const orphanAge = 24 * time.Hour

// startsWith are the names of what logical clusters hold from the start.
var startsWith = map[schema.GroupResource][]string{
	kinds.LogicalClusters.GroupResource():     {corev1alpha1.LogicalClusterName},
	kinds.Namespaces.GroupResource():          {metav1.NamespaceDefault, metav1.NamespaceSystem},
	kinds.ServiceAccounts.GroupResource():     {"default"},
	kinds.ConfigMaps.GroupResource():          {"kube-root-ca.crt"},
	kinds.ClusterRoleBindings.GroupResource(): {tenancy.OwnerBinding},
}

// startsWithAtMost is how many objects of a kind that may be.
const startsWithAtMost = 2

// removeOrphan deletes a LogicalCluster whose Workspace has gone, or reports that it is kept
// although that has gone. exists asks the shard of the Workspace for it.
func removeOrphan(ctx context.Context, key client.Key, here logicalClusters, seen *corev1alpha1.LogicalCluster, now time.Time, exists func(context.Context) (bool, error)) (kept bool, err error) {
	cluster := logicalcluster.From(seen)
	lc, err := here.get(ctx, cluster)
	if apierrors.IsNotFound(err) || err == nil && (lc.UID != seen.UID || lc.DeletionTimestamp != nil) {
		return false, nil // the watch will tell
	}
	if err != nil {
		return false, err
	}
	if found, err := exists(ctx); err != nil || found {
		return false, err
	}
	logger := klog.FromContext(ctx).WithValues("cluster", cluster, "owner", key.String(), "ownerUID", lc.Spec.Owner.UID)
	if age := now.Sub(lc.CreationTimestamp.Time); age > orphanAge {
		logger.Info("A logical cluster has no Workspace and is too old to be deleted for that: delete its LogicalCluster, or restore the Workspace", "age", age)
		return true, nil
	}
	unused, err := here.unused(ctx, cluster)
	if err != nil {
		return false, err
	}
	if !unused {
		logger.Info("A logical cluster has no Workspace and is not empty: delete its LogicalCluster, or restore the Workspace")
		return true, nil
	}
	logger.Info("Deleting a logical cluster that was created after its Workspace had gone")
	return false, here.remove(ctx, cluster, lc)
}

// unused reports whether a logical cluster holds nothing but what each one
// starts with.
func (s *site) unused(ctx context.Context, cluster logicalcluster.Name) (unused bool, err error) {
	err = s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		unused, err = holdsNothing(ctx, s.Clients.Cluster(cluster.Path()))
		return err
	})
	return unused, err
}

func holdsNothing(ctx context.Context, scope client.Scope) (bool, error) {
	discovery, err := documents.Of(scope)
	if err != nil {
		return false, err
	}
	metadata, err := scope.Metadata()
	if err != nil {
		return false, err
	}
	resources, err := purge.Discover(ctx, discovery)
	if err != nil {
		return false, err
	}
	for _, resource := range resources {
		if resource.GroupResource() == kinds.APIBindings.GroupResource() {
			continue // types bring them; what was made of what they bind is looked for
		}
		page, err := metadata.Resource(resource.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: startsWithAtMost + 1})
		if err != nil {
			return false, fmt.Errorf("listing %s: %w", resource.GroupResource(), err)
		}
		if !isStart(resource.GroupResource(), page) {
			return false, nil
		}
	}
	return true, nil
}

// isStart reports whether a list of what there is of a kind has nothing but what logical
// clusters start with.
func isStart(resource schema.GroupResource, page *metav1.PartialObjectMetadataList) bool {
	others := slices.ContainsFunc(page.Items, func(item metav1.PartialObjectMetadata) bool {
		return !slices.Contains(startsWith[resource], item.Name)
	})
	return !others && page.Continue == ""
}
