package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// contentAnnotation, on a WorkspaceType or APIExport that Shardplane comes with, holds the
// hash of the content that it came with last.
const contentAnnotation = "internal.shardplane.io/bootstrap-content"

// clustersOf returns the logical clusters that exist on a shard from the start.
func clustersOf(shard string) []logicalcluster.Name {
	if shard == corev1alpha1.RootShard {
		return []logicalcluster.Name{tenancy.AdminCluster, core.RootCluster, tenancy.HomesCluster}
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

// content says of a kind what the content of its objects is, which is shipped.
type content[T client.Object] struct {
	copied func(T) T
	of     func(T) any
	// take gives the content of from to into.
	take func(into, from T)
}

var workspaceTypes = content[*tenancyv1alpha1.WorkspaceType]{
	copied: (*tenancyv1alpha1.WorkspaceType).DeepCopy,
	of:     func(wt *tenancyv1alpha1.WorkspaceType) any { return wt.Spec },
	take:   func(into, from *tenancyv1alpha1.WorkspaceType) { into.Spec = *from.Spec.DeepCopy() },
}

var apiExports = content[*apisv1alpha2.APIExport]{
	copied: (*apisv1alpha2.APIExport).DeepCopy,
	of:     func(export *apisv1alpha2.APIExport) any { return export.Spec },
	take: func(into, from *apisv1alpha2.APIExport) {
		identity := into.Spec.Identity // is made here, and stays
		into.Spec = *from.Spec.DeepCopy()
		into.Spec.Identity = identity
	},
}

// shipped returns an embedded object as it is created.
func (c content[T]) shipped(obj T) (T, error) {
	raw, err := json.Marshal(c.of(obj))
	if err != nil {
		return obj, fmt.Errorf("encoding %T %s: %w", obj, obj.GetName(), err)
	}
	sum := sha256.Sum256(raw)
	obj = c.copied(obj)
	annotate(obj, contentAnnotation, hex.EncodeToString(sum[:8]))
	annotate(obj, core.LogicalClusterPathAnnotationKey, core.RootCluster.String())
	return obj, nil
}

func annotate(obj client.Object, key, value string) {
	annotations := maps.Clone(obj.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	obj.SetAnnotations(annotations)
}

// versionOf returns the version of the content that an object came with; 0 where it came
// with none, as before there were versions.
func versionOf(obj client.Object) int {
	version, err := strconv.Atoi(obj.GetAnnotations()[tenancy.ContentVersionAnnotation])
	if err != nil {
		return 0
	}
	return version
}

// updated returns an existing object as it should be, given the shipped one. It stays as it
// is, edits included, if it came with the same content, or with a newer one: replicas of two
// versions run side by side during an upgrade.
func (c content[T]) updated(existing, want T) T {
	if versionOf(existing) > versionOf(want) {
		return existing
	}
	result := c.copied(existing)
	if existing.GetAnnotations()[contentAnnotation] != want.GetAnnotations()[contentAnnotation] {
		c.take(result, want)
	}
	for key, value := range want.GetAnnotations() {
		annotate(result, key, value)
	}
	return result
}
