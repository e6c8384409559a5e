package rbac

import (
	"context"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

func roles(c Config, g *guard) *resource.Resource[*rbacv1.Role] {
	return &resource.Resource[*rbacv1.Role]{
		Name:       "roles",
		Singular:   "role",
		Kind:       "Role",
		Namespaced: true,
		New:        func() *rbacv1.Role { return &rbacv1.Role{} },
		NewList:    func() runtime.Object { return &rbacv1.RoleList{} },
		Strategy: resource.Strategy[*rbacv1.Role]{
			Validate: func(_ context.Context, role *rbacv1.Role) field.ErrorList { return validateRole(role) },
			ValidateUpdate: func(_ context.Context, role, old *rbacv1.Role) field.ErrorList {
				return append(validateRole(role), validate.ObjectMetaUpdate(&role.ObjectMeta, &old.ObjectMeta)...)
			},
			CreateOnUpdate:      true,
			UnconditionalUpdate: true,
		},
		Columns:   []resource.Column[*rbacv1.Role]{resource.NameColumn[*rbacv1.Role](), createdColumn[*rbacv1.Role]()},
		Customize: c.notifyWrites("roles"),
		Wrap:      guardWith(g.role),
	}
}

func clusterRoles(c Config, g *guard) *resource.Resource[*rbacv1.ClusterRole] {
	return &resource.Resource[*rbacv1.ClusterRole]{
		Name:     "clusterroles",
		Singular: "clusterrole",
		Kind:     "ClusterRole",
		New:      func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} },
		NewList:  func() runtime.Object { return &rbacv1.ClusterRoleList{} },
		Strategy: resource.Strategy[*rbacv1.ClusterRole]{
			Validate: func(_ context.Context, role *rbacv1.ClusterRole) field.ErrorList { return validateClusterRole(role) },
			ValidateUpdate: func(_ context.Context, role, old *rbacv1.ClusterRole) field.ErrorList {
				return append(validateClusterRole(role), validate.ObjectMetaUpdate(&role.ObjectMeta, &old.ObjectMeta)...)
			},
			CreateOnUpdate:      true,
			UnconditionalUpdate: true,
		},
		Columns:   []resource.Column[*rbacv1.ClusterRole]{resource.NameColumn[*rbacv1.ClusterRole](), createdColumn[*rbacv1.ClusterRole]()},
		Customize: c.notifyWrites("clusterroles"),
		Wrap:      guardWith(g.clusterRole),
	}
}

// createdColumn is the creation time, which roles have instead of the age.
func createdColumn[T resource.Object]() resource.Column[T] {
	return resource.Column[T]{
		Name:        "Created At",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		Cell:        func(obj T) any { return obj.GetCreationTimestamp().UTC().Format(time.RFC3339) },
	}
}
