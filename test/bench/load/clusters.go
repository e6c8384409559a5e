package load

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// clusterAnnotation names the logical cluster of an object.
const clusterAnnotation = "kcp.io/cluster"

// ReadyClusters returns the logical clusters of workspaces that a shard holds
// and that are ready, in a stable order. The target must be the shard.
func ReadyClusters(ctx context.Context, shard Target) ([]string, error) {
	client, err := shard.In("*").dynamic()
	if err != nil {
		return nil, err
	}
	list, err := client.Resource(corev1alpha1.SchemeGroupVersion.WithResource("logicalclusters")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the logical clusters of %s, which needs the kubeconfig of a shard: %w", shard.Name, err)
	}
	var clusters []string
	for _, object := range list.Items {
		name := object.GetAnnotations()[clusterAnnotation]
		phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
		// root and the system's own are no place for a benchmark's objects.
		if phase == "Ready" && name != "root" && !strings.HasPrefix(name, "system:") {
			clusters = append(clusters, name)
		}
	}
	slices.Sort(clusters)
	return clusters, nil
}
