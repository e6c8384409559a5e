// Package policy contains the built-in roles and bindings of a shard.
//
// They are regular objects in a system logical cluster of the shard. Its bindings apply in all logical
// clusters, and its cluster roles can be bound in all of them. They are not copied, so an update applies
// immediately.
package policy

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

// maximalPolicy is the suffix of maximal permission policies of exports in root.
const maximalPolicy = "maximal-permission-policy"

// Objects are cluster roles and their bindings.
type Objects struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
}

// System returns the objects that apply in all logical clusters. The caller may modify them.
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

// Root returns the objects in the logical cluster root. All users may access it, use the common workspace
// types, and bind the APIs of every workspace, subject to maximal permission policies. Members of
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

// offer allows all users to bind an export of root, which has the name of its group, and to use its
// resources, except that only the system and administrators may write the status.
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

// bind returns a built-in binding of a cluster role to groups.
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
