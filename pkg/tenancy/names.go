package tenancy

import (
	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AdminCluster is the logical cluster for what belongs to one shard alone. Each
// shard has its own.
const AdminCluster = logicalcluster.Name("system:admin")

// Annotations of Workspaces.
const (
	// InternalPrefix starts what the servers note on Workspaces for themselves.
	InternalPrefix = "internal.tenancy.kcp.io/"
	// ClusterAnnotation holds the name of the logical cluster that was claimed
	// for a Workspace.
	ClusterAnnotation = InternalPrefix + "cluster"
	// ShardHashAnnotation holds the hash of the name of the chosen shard.
	ShardHashAnnotation = InternalPrefix + "shard"
	// PlacementAnnotation holds the LogicalCluster that another shard is asked for, as JSON,
	// without the user who has created the Workspace. It goes when the phase is no longer
	// Scheduling.
	PlacementAnnotation = InternalPrefix + "placement"
)

// TargetLabel on a Workspace names the shard of its logical cluster, if that is another one
// than the Workspace's. That shard watches by it.
const TargetLabel = "internal.shardplane.io/target"

// Annotations, labels and finalizers of LogicalClusters.
const (
	// RequiredGroupsAnnotation lists the groups of which a user must be a member:
	// alternatives separated by semicolons, each of them groups separated by
	// commas, all of which it takes. A child starts with those that its Workspace
	// has, or, if that has none, with those of its parent.
	RequiredGroupsAnnotation = "authorization.kcp.io/required-groups"
	// MaxObjectsAnnotation is how many objects the logical cluster may hold, all kinds
	// together but without Events; 0 or less means any number. It wins over the
	// shard's default.
	MaxObjectsAnnotation = "core.kcp.io/max-total-objects"
	// MaxBytesAnnotation is how much the logical cluster may store, as a quantity such
	// as 2Gi; 0 or less means any amount. It wins over the shard's default.
	MaxBytesAnnotation = "core.shardplane.io/max-total-bytes"
	// MaxSubtreeObjectsAnnotation and MaxSubtreeBytesAnnotation are the same for the
	// logical cluster and all workspaces below it together, on all shards. There is no
	// default.
	MaxSubtreeObjectsAnnotation = "core.shardplane.io/max-subtree-objects"
	MaxSubtreeBytesAnnotation   = "core.shardplane.io/max-subtree-bytes"
	// SystemBindingsAnnotation, with the value SystemBound, says that the logical cluster
	// has those of the system's kinds that root exports only if it binds them. New ones
	// whose type binds none have it from birth. Others have all these kinds until they have
	// the bindings, which takes milliseconds: of new ones it holds, before, the names of the
	// exports, with commas, and those from before there were such bindings do not have it.
	SystemBindingsAnnotation = "internal.shardplane.io/system-bindings"
	SystemBound              = "true"
	// MigratingAnnotation, with any value, marks a LogicalCluster that is being
	// moved to another shard, on both of them.
	MigratingAnnotation = "internal.kcp.io/migrating"
	// OwnerShardLabel names the shard on which the owner is. That shard watches by
	// it.
	OwnerShardLabel = "internal.shardplane.io/owner-shard"
	// ContentFinalizer keeps a LogicalCluster until its content is gone.
	ContentFinalizer = "core.kcp.io/logicalcluster-deletion"
)

// UnschedulableAnnotation on a Shard, with any value, keeps new logical clusters away from
// it.
const UnschedulableAnnotation = "experimental.core.kcp.io/unschedulable"

// QuotaScopeAnnotation with the value "true" on a ResourceQuota in QuotaNamespace has it
// limit the whole logical cluster, as in kcp: all namespaces, and what is in none.
const (
	QuotaScopeAnnotation = "experimental.quota.kcp.io/cluster-scoped"
	QuotaNamespace       = "admin"
)

// LimitedBy returns the namespace whose objects a ResourceQuota limits, or "" if that is
// the whole logical cluster.
func LimitedBy(quota metav1.Object) string {
	if quota.GetNamespace() == QuotaNamespace && quota.GetAnnotations()[QuotaScopeAnnotation] == "true" {
		return ""
	}
	return quota.GetNamespace()
}

// QuotasIn returns the namespace in which the ResourceQuotas are that limit a namespace, or,
// with "", the whole logical cluster. Those there that limit something else are told by LimitedBy.
func QuotasIn(limited string) string {
	if limited == "" {
		return QuotaNamespace
	}
	return limited
}

// PathOf returns the canonical path of a logical cluster: its name, where
// workspaces do not lead to it.
func PathOf(lc *corev1alpha1.LogicalCluster) logicalcluster.Path {
	if path := lc.Annotations[core.LogicalClusterPathAnnotationKey]; path != "" {
		return logicalcluster.NewPath(path)
	}
	return logicalcluster.From(lc).Path()
}

// Replicated reports whether some controller or administrator has marked an object for
// replication, with the annotation or the label internal.kcp.io/replicate. The value lists who
// wants it and does not matter here; empty means nobody.
func Replicated(obj metav1.Object) bool {
	return obj.GetAnnotations()[core.ReplicateAnnotationKey] != "" || obj.GetLabels()[core.ReplicateAnnotationKey] != ""
}
