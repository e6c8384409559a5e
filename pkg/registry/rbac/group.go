package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

// Group returns rbac.authorization.k8s.io/v1. The zero Config is sufficient to register the types.
func Group(c Config) resource.Group {
	guard := &guard{authorizer: c.Authorizer, rules: c.Rules}
	return resource.Group{
		GroupVersion: rbacv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			roles(c, guard),
			roleBindings(c, guard),
			clusterRoles(c, guard),
			clusterRoleBindings(c, guard),
		},
	}
}
