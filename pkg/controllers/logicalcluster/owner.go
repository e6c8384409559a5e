package logicalcluster

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/authz/policy"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// ownerBindingOf returns the binding that the LogicalCluster's owner annotation
// asks for, while it is not Ready for the first time; nil if there is none.
func ownerBindingOf(lc *corev1alpha1.LogicalCluster) (*rbacv1.ClusterRoleBinding, error) {
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing:
	default:
		return nil, nil //nolint:nilnil // its time has passed
	}
	var parent logicalcluster.Name
	if lc.Spec.Owner != nil {
		parent = logicalcluster.Name(lc.Spec.Owner.Cluster)
	}
	name, err := tenancy.OwnerName(lc.Annotations, parent)
	if err != nil || name == "" {
		return nil, err
	}
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: tenancy.OwnerBinding},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: policy.ClusterAdmin},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, nil
}

// createBinding returns the function that creates bindings on a shard.
func createBinding(local *client.Factory) func(ctx context.Context, cluster logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error {
	return func(ctx context.Context, cluster logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error {
		_, err := kinds.ClusterRoleBindings.In(local.Cluster(cluster.Path())).Create(ctx, binding, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
}
