package controllers

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client"
)

// newRBACInformers makes the informers that authorization decides by.
func newRBACInformers(all client.Scope) rbac.Informers {
	return rbac.Informers{
		Roles:               client.Roles.Informer(all, client.InformerOptions[*rbacv1.Role]{}),
		RoleBindings:        client.RoleBindings.Informer(all, client.InformerOptions[*rbacv1.RoleBinding]{}),
		ClusterRoles:        client.ClusterRoles.Informer(all, client.InformerOptions[*rbacv1.ClusterRole]{}),
		ClusterRoleBindings: client.ClusterRoleBindings.Informer(all, client.InformerOptions[*rbacv1.ClusterRoleBinding]{}),
	}
}

// newReplicatedRBACInformers makes the informers of the cluster roles and
// bindings that shards share.
func newReplicatedRBACInformers(others client.Scope) rbac.Replicas {
	return rbac.Replicas{
		ClusterRoles:        client.ClusterRoles.Informer(others, client.InformerOptions[*rbacv1.ClusterRole]{Name: "replicated clusterroles"}),
		ClusterRoleBindings: client.ClusterRoleBindings.Informer(others, client.InformerOptions[*rbacv1.ClusterRoleBinding]{Name: "replicated clusterrolebindings"}),
	}
}
