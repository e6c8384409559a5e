package workspace

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/reconcile/purge"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// orphanAge is the maximum age at which a LogicalCluster without a Workspace is deleted. A delayed create request arrives
// within moments. An older LogicalCluster without a Workspace is probably a sign of data loss on this shard.
const orphanAge = 24 * time.Hour

var initialObjects = map[schema.GroupResource][]string{
	kinds.LogicalClusters.GroupResource():     {corev1alpha1.LogicalClusterName},
	kinds.Namespaces.GroupResource():          {metav1.NamespaceDefault, metav1.NamespaceSystem},
	kinds.ServiceAccounts.GroupResource():     {"default"},
	kinds.ConfigMaps.GroupResource():          {"kube-root-ca.crt"},
	kinds.ClusterRoleBindings.GroupResource(): {tenancy.OwnerBinding},
}

const maxInitialObjects = 2

// removeOrphan deletes a LogicalCluster without a Workspace, or returns true if it must be retained. exists reads the
// Workspace from its shard.
func removeOrphan(ctx context.Context, key client.Key, here logicalClusters, seen *corev1alpha1.LogicalCluster, now time.Time, exists func(context.Context) (bool, error)) (kept bool, err error) {
	cluster := logicalcluster.From(seen)
	lc, err := here.get(ctx, cluster)
	if apierrors.IsNotFound(err) || err == nil && (lc.UID != seen.UID || lc.DeletionTimestamp != nil) {
		return false, nil // the watch will report it
	}
	if err != nil {
		return false, err
	}
	if found, err := exists(ctx); err != nil || found {
		return false, err
	}
	logger := klog.FromContext(ctx).WithValues("cluster", cluster, "owner", key.String(), "ownerUID", lc.Spec.Owner.UID)
	if age := now.Sub(lc.CreationTimestamp.Time); age > orphanAge {
		logger.Info("Retaining a logical cluster without a Workspace because of its age: delete its LogicalCluster, or restore the Workspace", "age", age)
		return true, nil
	}
	unused, err := here.unused(ctx, cluster)
	if err != nil {
		return false, err
	}
	if !unused {
		logger.Info("Retaining a logical cluster without a Workspace because it is not empty: delete its LogicalCluster, or restore the Workspace")
		return true, nil
	}
	logger.Info("Deleting a logical cluster that was created after its Workspace was deleted")
	return false, here.remove(ctx, cluster, lc)
}

// unused reports whether a logical cluster contains only initial objects.
func (s *site) unused(ctx context.Context, cluster logicalcluster.Name) (unused bool, err error) {
	err = s.Do(ctx, requestTimeout, func(ctx context.Context) error {
		unused, err = isEmpty(ctx, s.Clients.Cluster(cluster.Path()))
		return err
	})
	return unused, err
}

func isEmpty(ctx context.Context, scope client.Scope) (bool, error) {
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
			continue // created by types; their resources are listed
		}
		page, err := metadata.Resource(resource.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: maxInitialObjects + 1})
		if err != nil {
			return false, fmt.Errorf("listing %s: %w", resource.GroupResource(), err)
		}
		if !isInitial(resource.GroupResource(), page) {
			return false, nil
		}
	}
	return true, nil
}

func isInitial(resource schema.GroupResource, page *metav1.PartialObjectMetadataList) bool {
	others := slices.ContainsFunc(page.Items, func(item metav1.PartialObjectMetadata) bool {
		return !slices.Contains(initialObjects[resource], item.Name)
	})
	return !others && page.Continue == ""
}

func newOrphans(registerer prometheus.Registerer) *orphans {
	return &orphans{count: map[client.Key]int{}, gauge: instruments.NewGauge(registerer, "shardplane_workspace_orphaned_logical_clusters",
		"Logical clusters without a Workspace that are not deleted because they are old or not empty. Only on the leader of their shard.")}
}

// orphans counts the retained logical clusters without a Workspace, by the key of the Workspace. The workspace controller and
// the placement controller use the same gauge.
type orphans struct {
	gauge prometheus.Gauge

	mu    sync.Mutex
	count map[client.Key]int
}

func (o *orphans) note(key client.Key, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.count[key]
	if n == before {
		return
	}
	o.gauge.Add(float64(n - before))
	o.count[key] = n
	if n == 0 {
		delete(o.count, key)
	}
}
