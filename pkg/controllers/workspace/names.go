package workspace

import (
	"crypto/rand"
	"crypto/sha256"
	"math/big"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"

	"github.com/shardplane/shardplane/pkg/authz"
)

// Annotations and labels of the contract, and one of our own.
const (
	// clusterAnnotation holds the name of the logical cluster that was claimed
	// for a Workspace.
	clusterAnnotation = "internal.tenancy.kcp.io/cluster"
	// shardHashAnnotation holds the hash of the name of the chosen shard.
	shardHashAnnotation = "internal.tenancy.kcp.io/shard"
	// shardAnnotation holds the name of the chosen shard.
	shardAnnotation = corev1alpha1.LogicalClusterShardAnnotationKey
	// typeAnnotation holds path and name of the type of a logical cluster.
	typeAnnotation = tenancyv1alpha1.LogicalClusterTypeAnnotationKey
	// requiredGroupsAnnotation restricts who may enter; a child starts with that
	// of its parent.
	requiredGroupsAnnotation = authz.RequiredGroupsAnnotation
	// ownerAnnotation holds the user who created a Workspace, as JSON.
	ownerAnnotation = tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey
	// unschedulableAnnotation, whatever its value, keeps new logical clusters
	// away from a Shard.
	unschedulableAnnotation = "experimental.core.kcp.io/unschedulable"
	// logicalClusterFinalizer keeps a LogicalCluster until its content is gone.
	logicalClusterFinalizer = "core.kcp.io/logicalcluster-deletion"
	// workspaceFinalizer keeps a Workspace until its LogicalCluster is gone.
	workspaceFinalizer = corev1alpha1.LogicalClusterFinalizerName

	// OwnerShardLabel, on a LogicalCluster, names the shard on which its owner
	// is. That shard watches by it.
	OwnerShardLabel = "internal.shardplane.io/owner-shard"
)

const (
	clusterNameLength = 16
	shardHashLength   = 8
)

// newClusterName returns a name that no other logical cluster has, on any
// shard, and that cannot be guessed.
func newClusterName() logicalcluster.Name {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails, by its documentation
	return logicalcluster.Name(hash(random, clusterNameLength))
}

// shardHash returns what shardHashAnnotation holds for a shard.
func shardHash(shard string) string { return hash([]byte(shard), shardHashLength) }

// hash returns the first characters of base36(sha224(data)).
func hash(data []byte, length int) string {
	sum := sha256.Sum224(data)
	return new(big.Int).SetBytes(sum[:]).Text(36)[:length]
}
