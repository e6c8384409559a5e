package workspace

import (
	"crypto/rand"
	"crypto/sha256"
	"math/big"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
)

// Name is the name of the controller.
const Name = "workspace"

// Names of the SDK by what they are here.
const (
	// shardAnnotation holds the name of the chosen shard.
	shardAnnotation = corev1alpha1.LogicalClusterShardAnnotationKey
	// ownerAnnotation holds the user who created a Workspace, as JSON.
	ownerAnnotation = tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey
	// workspaceFinalizer keeps a Workspace until its LogicalCluster is gone.
	workspaceFinalizer = corev1alpha1.LogicalClusterFinalizerName
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

// shardHash returns what tenancy.ShardHashAnnotation holds for a shard.
func shardHash(shard string) string { return hash([]byte(shard), shardHashLength) }

// hash returns the first characters of base36(sha224(data)).
func hash(data []byte, length int) string {
	sum := sha256.Sum224(data)
	return new(big.Int).SetBytes(sum[:]).Text(36)[:length]
}
