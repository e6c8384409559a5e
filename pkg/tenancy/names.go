package tenancy

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	"github.com/kcp-dev/sdk/apis/tenancy/termination"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
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
	// SystemBindingsAnnotation is "true" (SystemBound) if the logical cluster only has the system APIs that it binds. A
	// new one has all system APIs until the bindings of its type exist; until then the value is the comma-separated
	// names of the exports. The annotation is missing if root's types were unknown when it was created.
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

// QuotasIn returns the namespace that contains, among others, the ResourceQuotas that are LimitedBy a namespace or "".
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
// the label internal.kcp.io/replicate, whose value lists the requesters.
func Replicated(obj metav1.Object) bool {
	return obj.GetAnnotations()[core.ReplicateAnnotationKey] != "" || obj.GetLabels()[core.ReplicateAnnotationKey] != ""
}

// SetPhaseLabels sets the labels of a Workspace or LogicalCluster for its phase, initializers and terminators, and
// removes outdated ones. Other labels are kept. The caller must own obj.
func SetPhaseLabels(
	obj metav1.Object, phase corev1alpha1.LogicalClusterPhaseType,
	initializers []corev1alpha1.LogicalClusterInitializer, terminators []corev1alpha1.LogicalClusterTerminator,
) {
	want := map[string]string{tenancyv1alpha1.WorkspacePhaseLabel: string(phase)}
	for _, initializer := range initializers {
		key, value := initialization.InitializerToLabel(initializer)
		want[key] = value
	}
	for _, terminator := range terminators {
		key, value := termination.TerminatorToLabel(terminator)
		want[key] = value
	}
	labels := obj.GetLabels()
	maps.DeleteFunc(labels, func(key, _ string) bool {
		_, wanted := want[key]
		return !wanted && (strings.HasPrefix(key, tenancyv1alpha1.WorkspaceInitializerLabelPrefix) ||
			strings.HasPrefix(key, tenancyv1alpha1.WorkspaceTerminatorLabelPrefix))
	})
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, want)
	obj.SetLabels(labels)
}

// HasContent reports whether a logical cluster in this phase is available to users.
func HasContent(phase corev1alpha1.LogicalClusterPhaseType) bool {
	return phase != "" && phase != corev1alpha1.LogicalClusterPhaseScheduling && phase != corev1alpha1.LogicalClusterPhaseInitializing
}

// HomesCluster is the logical cluster on root's shard with the Workspaces of home workspaces, for the system only.
const HomesCluster = logicalcluster.Name(request.SystemPrefix + "homes")

// homeSegment is the first segment of the paths of home workspaces.
const homeSegment = "user"

// HomeName returns the name of the logical cluster of a user's home workspace. It consists of the first 8 bytes of a
// hash in base 36, with a leading zero for each leading zero byte.
func HomeName(username string) logicalcluster.Name {
	sum := sha256.Sum224([]byte(username))
	id := sum[:8]
	zeros := 0
	for zeros < len(id) && id[zeros] == 0 {
		zeros++
	}
	return logicalcluster.Name(strings.Repeat("0", zeros) + new(big.Int).SetBytes(id).Text(36))
}

// HomePath returns the path of a user's home workspace: user:<name>. If the user name is not a valid path segment, e.g.
// a mail address, it returns the name of the logical cluster.
func HomePath(username string) logicalcluster.Path {
	if request.ValidName(username) {
		return logicalcluster.NewPath(homeSegment).Join(username)
	}
	return HomeName(username).Path()
}

// CutHome cuts user:<name> from the beginning of a path, and returns the logical cluster of that home workspace.
func CutHome(path string) (home logicalcluster.Name, rest string, more, found bool) {
	after, found := strings.CutPrefix(path, homeSegment+":")
	if !found {
		return "", "", false, false
	}
	username, rest, more := strings.Cut(after, ":")
	return HomeName(username), rest, more, true
}

// OwnerBinding is the name of the ClusterRoleBinding that makes the creator of a workspace its administrator. It is
// created only once, because users may change or delete it.
const OwnerBinding = "workspace-admin"

// OwnerName returns the name that the owner of a workspace has in the workspace, according to the annotation of the
// Workspace or LogicalCluster. For a service account, this is the global name. OwnerName returns "" if there is no
// owner. parent is the logical cluster of the Workspace.
func OwnerName(annotations map[string]string, parent logicalcluster.Name) (string, error) {
	annotation := annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey]
	if annotation == "" {
		return "", nil // created by the system
	}
	var owner authenticationv1.UserInfo
	if err := json.Unmarshal([]byte(annotation), &owner); err != nil {
		return "", fmt.Errorf("annotation %s is not a user: %w", tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey, err)
	}
	u := &user.DefaultInfo{Name: owner.Username, Extra: map[string][]string{}}
	for key, values := range owner.Extra {
		u.Extra[key] = values
	}
	if !identity.IsServiceAccount(u) {
		return owner.Username, nil
	}
	home, ok := identity.HomeOf(parent, u)
	if !ok || home == parent && !identity.InScope(parent, u) {
		return "", nil // a service account without a valid logical cluster
	}
	return identity.GlobalName(home, owner.Username), nil
}
