package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/tenancy"
)

// contentAnnotation, on a WorkspaceType that Shardplane comes with, holds the
// hash of the content that it came with last.
const contentAnnotation = "internal.shardplane.io/bootstrap-content"

// versionAnnotation, on such a WorkspaceType, is the version of that content: a
// number that rises with each change, as config/workspacetypes has it.
const versionAnnotation = "internal.shardplane.io/bootstrap-version"

// clustersOf returns the logical clusters that exist on a shard from the start.
func clustersOf(shard string) []logicalcluster.Name {
	if shard == corev1alpha1.RootShard {
		return []logicalcluster.Name{tenancy.AdminCluster, core.RootCluster}
	}
	return []logicalcluster.Name{tenancy.AdminCluster}
}

// logicalClusterOf returns the LogicalCluster of one of them.
func logicalClusterOf(cluster logicalcluster.Name, shard string) *corev1alpha1.LogicalCluster {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: corev1alpha1.LogicalClusterName,
		Annotations: map[string]string{
			core.LogicalClusterPathAnnotationKey:          cluster.String(),
			corev1alpha1.LogicalClusterShardAnnotationKey: shard,
		},
	}}
	if cluster == core.RootCluster {
		lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey] = cluster.Path().Join(string(tenancyv1alpha1.RootWorkspaceTypeName)).String()
	}
	return lc
}

// shipped returns a WorkspaceType of the embedded ones as it is created.
func shipped(wt *tenancyv1alpha1.WorkspaceType) (*tenancyv1alpha1.WorkspaceType, error) {
	raw, err := json.Marshal(wt.Spec)
	if err != nil {
		return nil, fmt.Errorf("encoding workspace type %s: %w", wt.Name, err)
	}
	sum := sha256.Sum256(raw)
	wt = wt.DeepCopy()
	metav1.SetMetaDataAnnotation(&wt.ObjectMeta, contentAnnotation, hex.EncodeToString(sum[:8]))
	metav1.SetMetaDataAnnotation(&wt.ObjectMeta, core.LogicalClusterPathAnnotationKey, core.RootCluster.String())
	return wt, nil
}

// versionOf returns the version of the content that a WorkspaceType came with; 0
// where it came with none, as before there were versions.
func versionOf(wt *tenancyv1alpha1.WorkspaceType) int {
	version, err := strconv.Atoi(wt.Annotations[versionAnnotation])
	if err != nil {
		return 0
	}
	return version
}

// updated returns the existing WorkspaceType as it should be, given the shipped
// one. It stays as it is, edits included, if it came with the same content, or
// with a newer one: replicas of two versions run side by side during an upgrade.
func updated(existing, want *tenancyv1alpha1.WorkspaceType) *tenancyv1alpha1.WorkspaceType {
	if versionOf(existing) > versionOf(want) {
		return existing
	}
	result := existing.DeepCopy()
	if existing.Annotations[contentAnnotation] != want.Annotations[contentAnnotation] {
		result.Spec = *want.Spec.DeepCopy()
	}
	for key, value := range want.Annotations {
		metav1.SetMetaDataAnnotation(&result.ObjectMeta, key, value)
	}
	return result
}
