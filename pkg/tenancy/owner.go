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

// OwnerBinding is the name of the ClusterRoleBinding that makes who created a workspace its
// administrator. It is created once: its subjects may change it, or delete it, when the
// logical cluster is Ready.
const OwnerBinding = "workspace-admin"

// OwnerName returns the name by which the owner of a workspace is known in it, as the
// annotation of the Workspace or LogicalCluster says; parent is where the Workspace is. It is
// empty where nobody is the owner. Service accounts have another name outside of their own
// logical cluster: the same one would be another account.
func OwnerName(annotations map[string]string, parent logicalcluster.Name) (string, error) {
	annotation := annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey]
	if annotation == "" {
		return "", nil // the system's own
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
		return "", nil // an account of nowhere is nobody
	}
	return identity.GlobalName(home, owner.Username), nil
}
