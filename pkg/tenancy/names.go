package tenancy

import (
	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AdminCluster is the logical cluster for objects of a single shard. Each shard has its own.
const AdminCluster = logicalcluster.Name("system:admin")

// Annotations and labels of Workspaces.
const (
	// InternalPrefix is the prefix of annotations that only servers use.
	InternalPrefix = "internal.tenancy.kcp.io/"
	// ClusterAnnotation is the name of the logical cluster that is reserved for the Workspace.
	//
	//reference:metadata Workspace | workspace controller
	ClusterAnnotation = InternalPrefix + "cluster"
	// ShardHashAnnotation is the hash of the name of the selected shard.
	//
	//reference:metadata Workspace | workspace controller
	ShardHashAnnotation = InternalPrefix + "shard"
	// PlacementAnnotation is the LogicalCluster that the selected shard must create, as JSON, without the user
	// who created the Workspace. It is removed when the phase is no longer Scheduling.
	//
	//reference:metadata Workspace | workspace controller
	PlacementAnnotation = InternalPrefix + "placement"
	// TargetLabel is the shard of the logical cluster if it is not the shard of the Workspace. That shard
	// watches Workspaces with this label.
	//
	//reference:metadata Workspace | workspace controller
	TargetLabel = "internal.shardplane.io/target"
)

// Annotations, labels and finalizers of LogicalClusters.
const (
	// RequiredGroupsAnnotation restricts access to members of groups: alternatives separated by semicolons,
	// each a list of required groups separated by commas. A new child gets the value of its Workspace or, if
	// that has none, of its parent.
	//
	//reference:metadata LogicalCluster, Workspace | administrators
	RequiredGroupsAnnotation = "authorization.kcp.io/required-groups"
	// MaxObjectsAnnotation is the maximum number of objects without Events. 0 or less means no limit. It
	// overrides the default of the shard.
	//
	//reference:metadata LogicalCluster | administrators
	MaxObjectsAnnotation = "core.kcp.io/max-total-objects"
	// MaxBytesAnnotation is the maximum size of the stored objects, e.g. 2Gi. 0 or less means no limit. It
	// overrides the default of the shard.
	//
	//reference:metadata LogicalCluster | administrators
	MaxBytesAnnotation = "core.shardplane.io/max-total-bytes"
	// MaxSubtreeObjectsAnnotation is the maximum number of objects in the logical cluster and all workspaces
	// below it, on all shards. There is no default.
	//
	//reference:metadata LogicalCluster | administrators
	//reference:limit cluster @core.shardplane.io/max-subtree-objects =none | objects of the workspace and all workspaces below it, on all shards | 403
	MaxSubtreeObjectsAnnotation = "core.shardplane.io/max-subtree-objects"
	// MaxSubtreeBytesAnnotation is the maximum size of the objects in the logical cluster and all workspaces
	// below it, on all shards. There is no default.
	//
	//reference:metadata LogicalCluster | administrators
	//reference:limit cluster @core.shardplane.io/max-subtree-bytes =none | size of the objects of the workspace and all workspaces below it, on all shards | 403
	MaxSubtreeBytesAnnotation = "core.shardplane.io/max-subtree-bytes"
	// SystemBindingsAnnotation is "true" (SystemBound) if the logical cluster only has the system APIs that it binds.
	//
	// New logical clusters whose type binds none have it from the beginning. Others have all system APIs until the
	// bindings exist, which takes milliseconds; until then the value is the comma-separated names of the exports.
	// Logical clusters that were created before there were such bindings do not have the annotation.
	//
	//reference:metadata LogicalCluster | shard
	SystemBindingsAnnotation = "internal.shardplane.io/system-bindings"
	SystemBound              = "true"
	// MigratingAnnotation, with any value, identifies a LogicalCluster that is being migrated to another shard,
	// on both shards.
	//
	//reference:metadata LogicalCluster | the system
	MigratingAnnotation = "internal.kcp.io/migrating"
	// OwnerShardLabel is the shard of the Workspace that owns the logical cluster. That shard watches
	// LogicalClusters with this label.
	//
	//reference:metadata LogicalCluster | workspace controller
	OwnerShardLabel = "internal.shardplane.io/owner-shard"
	// ContentFinalizer protects a LogicalCluster until its content has been deleted.
	//
	//reference:metadata LogicalCluster | workspace controller
	ContentFinalizer = "core.kcp.io/logicalcluster-deletion"
)

// UnschedulableAnnotation excludes the shard from the placement of new logical clusters. It can have any value.
//
//reference:metadata Shard | administrators
const UnschedulableAnnotation = "experimental.core.kcp.io/unschedulable"

// Quotas of whole logical clusters: all namespaces and cluster-scoped objects.
const (
	// QuotaScopeAnnotation makes a ResourceQuota in the namespace admin apply to the whole
	// logical cluster if its value is true, as in kcp.
	//
	//reference:metadata ResourceQuota | users
	QuotaScopeAnnotation = "experimental.quota.kcp.io/cluster-scoped"
	QuotaNamespace       = "admin"
)

// LimitedBy returns the namespace to which a ResourceQuota applies, or "" for the logical cluster.
func LimitedBy(quota metav1.Object) string {
	if quota.GetNamespace() == QuotaNamespace && quota.GetAnnotations()[QuotaScopeAnnotation] == "true" {
		return ""
	}
	return quota.GetNamespace()
}

// QuotasIn returns the namespace that contains the ResourceQuotas for a namespace, or for the logical cluster ("").
// It may contain others, which LimitedBy distinguishes.
func QuotasIn(limited string) string {
	if limited == "" {
		return QuotaNamespace
	}
	return limited
}

// PathOf returns the canonical path of a logical cluster, or its name if it has no workspace.
func PathOf(lc *corev1alpha1.LogicalCluster) logicalcluster.Path {
	if path := lc.Annotations[core.LogicalClusterPathAnnotationKey]; path != "" {
		return logicalcluster.NewPath(path)
	}
	return logicalcluster.From(lc).Path()
}

// Replicated reports whether a controller or administrator has marked an object for replication, with the annotation or
// the label internal.kcp.io/replicate. Its value lists the requesters; only an empty value means no replication.
func Replicated(obj metav1.Object) bool {
	return obj.GetAnnotations()[core.ReplicateAnnotationKey] != "" || obj.GetLabels()[core.ReplicateAnnotationKey] != ""
}
