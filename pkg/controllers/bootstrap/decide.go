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

// contentAnnotation is the hash of the last installed content.
//
//reference:metadata WorkspaceTypes and APIExports of Shardplane | bootstrap controller
const contentAnnotation = "internal.shardplane.io/bootstrap-content"

// clustersOf returns the logical clusters that each shard of this kind has.
func clustersOf(shard string) []logicalcluster.Name {
	if shard == corev1alpha1.RootShard {
		return []logicalcluster.Name{tenancy.AdminCluster, core.RootCluster, tenancy.HomesCluster}
	}
	return []logicalcluster.Name{tenancy.AdminCluster}
}

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

// content defines the shipped content of a kind of object.
type content[T client.Object] struct {
	copied      func(T) T
	of          func(T) any
	copyContent func(into, from T) // copies the content
}

var workspaceTypes = content[*tenancyv1alpha1.WorkspaceType]{
	copied:      (*tenancyv1alpha1.WorkspaceType).DeepCopy,
	of:          func(wt *tenancyv1alpha1.WorkspaceType) any { return wt.Spec },
	copyContent: func(into, from *tenancyv1alpha1.WorkspaceType) { into.Spec = *from.Spec.DeepCopy() },
}

var apiExports = content[*apisv1alpha2.APIExport]{
	copied: (*apisv1alpha2.APIExport).DeepCopy,
	of:     func(export *apisv1alpha2.APIExport) any { return export.Spec },
	copyContent: func(into, from *apisv1alpha2.APIExport) {
		identity := into.Spec.Identity // generated on this installation
		into.Spec = *from.Spec.DeepCopy()
		into.Spec.Identity = identity
	},
}

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

// versionOf returns the version of an object's content; 0 for releases without versions.
func versionOf(obj client.Object) int {
	version, err := strconv.Atoi(obj.GetAnnotations()[tenancy.ContentVersionAnnotation])
	if err != nil {
		return 0
	}
	return version
}

// updated returns an existing object with the shipped content. The object does not change, including edits, if its shipped
// content was the same or newer: during an upgrade, replicas of two versions run concurrently.
func (c content[T]) updated(existing, want T) T {
	if versionOf(existing) > versionOf(want) {
		return existing
	}
	result := c.copied(existing)
	if existing.GetAnnotations()[contentAnnotation] != want.GetAnnotations()[contentAnnotation] {
		c.copyContent(result, want)
	}
	for key, value := range want.GetAnnotations() {
		annotate(result, key, value)
	}
	return result
}
