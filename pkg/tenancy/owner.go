package tenancy

import (
	"encoding/json"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

// OwnerBinding is the name of the ClusterRoleBinding that makes the creator of a workspace its administrator. It is created
// only once, so that users can change or delete it when the logical cluster is Ready.
const OwnerBinding = "workspace-admin"

// OwnerName returns the user name of a workspace's owner in the workspace, according to the annotation of the Workspace or
// LogicalCluster, or "" if it has no owner. parent is the logical cluster of the Workspace. Service accounts have a
// global name outside of their own logical cluster, because the same name would identify another account there.
func OwnerName(annotations map[string]string, parent logicalcluster.Name) (string, error) {
	annotation := annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey]
	if annotation == "" {
		return "", nil // created by the system
	}
	var owner authenticationv1.UserInfo
	if err := json.Unmarshal([]byte(annotation), &owner); err != nil {
		return "", fmt.Errorf("annotation %s is not a user: %w", tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey, err)
	}
	u := &user.DefaultInfo{Name: owner.Username, Extra: map[string][]string{}}
	for key, values := range owner.Extra {
		u.Extra[key] = values
	}
	if !identity.IsServiceAccount(u) {
		return owner.Username, nil
	}
	home, ok := identity.HomeOf(parent, u)
	if !ok || home == parent && !identity.InScope(parent, u) {
		return "", nil // a service account without a valid logical cluster
	}
	return identity.GlobalName(home, owner.Username), nil
}
