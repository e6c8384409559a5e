package serviceaccount

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
)

// Accounts looks up what tokens are bound to, wherever the logical cluster is.
// Both methods answer with a NotFound status error where there is no such
// object.
type Accounts interface {
	ServiceAccount(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error)
	Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error)
}
