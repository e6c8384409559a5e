// Package policy holds the roles and bindings that every shard comes with.
//
// They are objects like all others, in the logical cluster for what belongs to
// one shard alone, and apply in each of its logical clusters: rules of bindings
// there count everywhere, and cluster roles there can be bound everywhere.
// Nothing is copied, so a new version of a role is there for everybody at once.
package policy

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

// Groups of the system, beside those of package request.
const (
	// GroupWorkspaceBootstrapper fills new workspaces; like request.GroupAdmin, but what
	// it creates belongs to it.
	GroupWorkspaceBootstrapper = "system:kcp:tenancy:workspace-bootstrapper"
	// GroupExternalLogicalClusterAdmin is for what leads logical clusters from
	// other servers.
	GroupExternalLogicalClusterAdmin = "system:kcp:external-logical-cluster-admin"
)

// Names of cluster roles that others refer to.
const (
	// ClusterAdmin may do everything.
	ClusterAdmin = "cluster-admin"
	// WorkspaceAccess lets into a logical cluster and gives no right in it.
	WorkspaceAccess = "system:kcp:workspace:access"
)

// Objects are cluster roles and their bindings.
type Objects struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
}

// System returns what applies in all logical clusters. The caller owns it.
func System() Objects {
	return Objects{
		ClusterRoles: append(append(kubernetesRoles(), userFacingRoles()...), systemRoles()...),
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{
			bind(ClusterAdmin, ClusterAdmin, user.SystemPrivilegedGroup),
			bind(request.GroupAdmin+":cluster-admin", ClusterAdmin, request.GroupAdmin),
			bind("system:discovery", "system:discovery", user.AllAuthenticated),
			bind("system:basic-user", "system:basic-user", user.AllAuthenticated),
			bind("system:public-info-viewer", "system:public-info-viewer", user.AllAuthenticated, user.AllUnauthenticated),
			bind("system:service-account-issuer-discovery", "system:service-account-issuer-discovery", "system:serviceaccounts"),
			bind("system:monitoring", "system:monitoring", "system:monitoring"),
			bind(GroupWorkspaceBootstrapper, GroupWorkspaceBootstrapper, GroupWorkspaceBootstrapper, request.GroupBindingPrefix+GroupWorkspaceBootstrapper),
			bind(request.GroupLogicalClusterAdmin, request.GroupLogicalClusterAdmin, request.GroupLogicalClusterAdmin),
			bind(GroupExternalLogicalClusterAdmin, GroupExternalLogicalClusterAdmin, GroupExternalLogicalClusterAdmin),
		},
	}
}

// Root returns what applies in the logical cluster root: everybody may enter
// it, and use the workspace types that are for everybody.
func Root() Objects {
	const use = "system:kcp:universal-workspacetype-use"
	return Objects{
		ClusterRoles: []*rbacv1.ClusterRole{
			role(use, rbacv1.PolicyRule{
				Verbs: []string{"use"}, APIGroups: []string{groupTenancy}, Resources: []string{"workspacetypes"},
				ResourceNames: []string{"universal", "organization", "team"},
			}),
		},
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{
			bind("system:kcp:tenancy:authenticated:access", WorkspaceAccess, user.AllAuthenticated),
			bind(use, use, user.AllAuthenticated),
		},
	}
}

// role makes a cluster role as it is shipped.
func role(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: shipped(name), Rules: rules}
}

// bind makes a binding of a cluster role to groups as it is shipped.
func bind(name, to string, groups ...string) *rbacv1.ClusterRoleBinding {
	b := &rbacv1.ClusterRoleBinding{
		ObjectMeta: shipped(name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: to},
	}
	for _, group := range groups {
		b.Subjects = append(b.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group})
	}
	return b
}

// shipped is the metadata that marks what a shard comes with, and brings up to
// date unless an administrator has switched that off by the annotation.
func shipped(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// on makes a rule about resources of one API group.
func on(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: resources}
}

// urls makes a rule about paths.
func urls(verb string, paths ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, NonResourceURLs: paths}
}
