package purge

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// Finalize writes spec.finalizers of a namespace, which requires this subresource.
func Finalize(ctx context.Context, namespaces *client.Client[*corev1.Namespace, *corev1.NamespaceList], ns *corev1.Namespace) error {
	err := namespaces.GetClient().Put().Resource(kinds.Namespaces.Resource).Name(ns.Name).SubResource("finalize").Body(ns).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("finalizing namespace %s: %w", client.KeyOf(ns), err)
	}
	return nil
}
