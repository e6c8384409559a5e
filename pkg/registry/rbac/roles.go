package rbac

import (
	"context"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/registry/resource"
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
				return append(validateRole(role), metaUpdate(&role.ObjectMeta, &old.ObjectMeta)...)
			},
			CreateOnUpdate:      true,
			UnconditionalUpdate: true,
		},
		Columns:   []resource.Column[*rbacv1.Role]{resource.NameColumn[*rbacv1.Role](), createdColumn[*rbacv1.Role]()},
		Customize: c.tell("roles"),
		Wrap: func(store *genericregistry.Store) rest.Storage {
			return &guarded{Store: store, check: g.role}
		},
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
				return append(validateClusterRole(role), metaUpdate(&role.ObjectMeta, &old.ObjectMeta)...)
			},
			CreateOnUpdate:      true,
			UnconditionalUpdate: true,
		},
		Columns:   []resource.Column[*rbacv1.ClusterRole]{resource.NameColumn[*rbacv1.ClusterRole](), createdColumn[*rbacv1.ClusterRole]()},
		Customize: c.tell("clusterroles"),
		Wrap: func(store *genericregistry.Store) rest.Storage {
			return &guarded{Store: store, check: g.clusterRole}
		},
	}
}

// createdColumn is the time of creation, which roles show instead of the age.
func createdColumn[T resource.Object]() resource.Column[T] {
	return resource.Column[T]{
		Name:        "Created At",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		Cell:        func(obj T) any { return obj.GetCreationTimestamp().UTC().Format(time.RFC3339) },
	}
}
