// Package policy holds the roles and bindings that every shard comes with.
//
// They are objects like all others, in the logical cluster for what belongs to
// one shard alone, and apply in each of its logical clusters: rules of bindings
// there count everywhere, and cluster roles there can be bound everywhere.
// Nothing is copied, so a new version of a role is there for everybody at once.
package policy

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

// maximalPolicy ends the names of the maximal permission policies of exports of root.
const maximalPolicy = "maximal-permission-policy"

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
			bind(discovery, discovery, user.AllAuthenticated),
			bind(basicUser, basicUser, user.AllAuthenticated),
			bind(publicInfoViewer, publicInfoViewer, user.AllAuthenticated, user.AllUnauthenticated),
			bind(issuerDiscovery, issuerDiscovery, serviceaccount.AllServiceAccountsGroup),
			bind(monitoring, monitoring, monitoring),
			bind(request.GroupWorkspaceBootstrapper, request.GroupWorkspaceBootstrapper, request.GroupWorkspaceBootstrapper, request.GroupBindingPrefix+request.GroupWorkspaceBootstrapper),
			bind(request.GroupLogicalClusterAdmin, request.GroupLogicalClusterAdmin, request.GroupLogicalClusterAdmin),
			bind(request.GroupExternalLogicalClusterAdmin, request.GroupExternalLogicalClusterAdmin, request.GroupExternalLogicalClusterAdmin),
		},
	}
}

// Root returns what applies in the logical cluster root: everybody may enter it, use the
// workspace types that are for everybody, and bind the APIs that every workspace is to have;
// and what those who have bound these may do with them at most. Members of the groups
// homeCreators may have home workspaces.
func Root(homeCreators ...string) Objects {
	const use = "system:kcp:universal-workspacetype-use"
	root := Objects{
		ClusterRoles: []*rbacv1.ClusterRole{
			role(use, rbacv1.PolicyRule{
				Verbs: []string{"use"}, APIGroups: []string{groupTenancy}, Resources: []string{"workspacetypes"},
				ResourceNames: []string{"universal", "organization", "team"},
			}),
			role(HomeCreate, rbacv1.PolicyRule{
				Verbs: []string{"get", "create"}, APIGroups: []string{groupTenancy}, Resources: []string{"workspaces"}, ResourceNames: []string{"~"},
			}),
		},
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{
			bind("system:kcp:tenancy:authenticated:access", WorkspaceAccess, user.AllAuthenticated),
			bind(use, use, user.AllAuthenticated),
			bind(HomeCreate, HomeCreate, homeCreators...),
		},
	}
	root.offer("tenancy", groupTenancy, "workspaces", "workspacetypes", "workspaceauthenticationconfigurations")
	root.offer("topology", groupTopology, "partitions", "partitionsets")
	return root
}

// offer lets everybody bind an export of root, named as its group is, and use its resources
// but for their status, which the system and administrators write.
func (o *Objects) offer(name, group string, resources ...string) {
	of := "apiexport:" + name + ":"
	binds, most, admin := request.GroupPrefix+of+"bind", request.GroupPrefix+of+maximalPolicy, request.GroupAdmin+":"+of+maximalPolicy
	statuses := make([]string, 0, len(resources))
	for _, resource := range resources {
		statuses = append(statuses, resource+"/status")
	}
	o.ClusterRoles = append(o.ClusterRoles,
		role(binds, rbacv1.PolicyRule{
			Verbs: []string{"bind"}, APIGroups: []string{groupAPIs}, Resources: []string{"apiexports"}, ResourceNames: []string{group},
		}),
		role(most, on(group, []string{"*"}, resources...), on(group, read, statuses...)),
		role(admin, on(group, []string{"*"}, "*")),
	)
	o.ClusterRoleBindings = append(o.ClusterRoleBindings,
		bind(binds, binds, user.AllAuthenticated),
		bind(most, most, request.GroupBindingPrefix+user.AllAuthenticated),
		bind(admin, admin, request.GroupBindingPrefix+request.GroupAdmin, request.GroupBindingPrefix+request.GroupLogicalClusterAdmin, request.GroupBindingPrefix+request.GroupExternalLogicalClusterAdmin),
	)
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
