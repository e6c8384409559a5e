package logicalcluster

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authz/policy"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// ownerBinding is the name of the binding that makes who created a workspace
// its administrator. It is created once: its subjects may change it, or delete
// it, when the logical cluster is Ready.
const ownerBinding = "workspace-admin"

// ownerBindingOf returns the binding that the LogicalCluster's owner annotation
// asks for, while it is not Ready for the first time; nil if there is none.
func ownerBindingOf(lc *corev1alpha1.LogicalCluster) (*rbacv1.ClusterRoleBinding, error) {
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing:
	default:
		return nil, nil //nolint:nilnil // its time has passed
	}
	annotation := lc.Annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey]
	if annotation == "" {
		return nil, nil //nolint:nilnil // the system's own
	}
	var owner authenticationv1.UserInfo
	if err := json.Unmarshal([]byte(annotation), &owner); err != nil {
		return nil, fmt.Errorf("annotation %s is not a user: %w", tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey, err)
	}
	if owner.Username == "" {
		return nil, nil //nolint:nilnil // nobody to bind to
	}
	name, ok := nameHere(owner, lc)
	if !ok {
		return nil, nil //nolint:nilnil // an account of nowhere is nobody
	}
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ownerBinding},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: policy.ClusterAdmin},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, nil
}

// nameHere returns the name that the owner has in the new logical cluster, if it
// is anybody there. Service accounts have another one outside of their own: the
// same name would be another account.
func nameHere(owner authenticationv1.UserInfo, lc *corev1alpha1.LogicalCluster) (string, bool) {
	u := &user.DefaultInfo{Name: owner.Username, Extra: map[string][]string{}}
	for key, values := range owner.Extra {
		u.Extra[key] = values
	}
	if !identity.IsServiceAccount(u) {
		return owner.Username, true
	}
	var parent logicalcluster.Name
	if lc.Spec.Owner != nil {
		parent = logicalcluster.Name(lc.Spec.Owner.Cluster)
	}
	home, ok := identity.HomeOf(parent, u)
	if !ok || home == parent && !identity.InScope(parent, u) {
		return "", false
	}
	return identity.GlobalName(home, owner.Username), true
}

// createBinding returns the function that creates bindings on a shard.
func createBinding(local *client.Factory) func(ctx context.Context, cluster logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error {
	return func(ctx context.Context, cluster logicalcluster.Name, binding *rbacv1.ClusterRoleBinding) error {
		_, err := client.ClusterRoleBindings.In(local.Cluster(cluster.Path())).Create(ctx, binding, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
}
