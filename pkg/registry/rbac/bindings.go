package rbac

import (
	"context"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

func roleBindings(c Config, g *guard) *resource.Resource[*rbacv1.RoleBinding] {
	return &resource.Resource[*rbacv1.RoleBinding]{
		Name:       "rolebindings",
		Singular:   "rolebinding",
		Kind:       "RoleBinding",
		Namespaced: true,
		New:        func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
		NewList:    func() runtime.Object { return &rbacv1.RoleBindingList{} },
		Default:    func(binding *rbacv1.RoleBinding) { defaultBinding(&binding.RoleRef, binding.Subjects) },
		Strategy: resource.Strategy[*rbacv1.RoleBinding]{
			Validate: func(_ context.Context, binding *rbacv1.RoleBinding) field.ErrorList {
				return validateBinding(&binding.ObjectMeta, binding.RoleRef, binding.Subjects, true)
			},
			ValidateUpdate: func(_ context.Context, binding, old *rbacv1.RoleBinding) field.ErrorList {
				errs := validateBinding(&binding.ObjectMeta, binding.RoleRef, binding.Subjects, true)
				errs = append(errs, validate.ObjectMetaUpdate(&binding.ObjectMeta, &old.ObjectMeta)...)
				return append(errs, sameRoleRef(binding.RoleRef, old.RoleRef)...)
			},
			CreateOnUpdate:      true,
			UnconditionalUpdate: true,
		},
		Columns: bindingColumns(
			rbacv1.RoleBinding{}.SwaggerDoc(),
			func(binding *rbacv1.RoleBinding) (rbacv1.RoleRef, []rbacv1.Subject) {
				return binding.RoleRef, binding.Subjects
			},
		),
		Customize: c.notifyWrites("rolebindings"),
		Wrap:      guardWith(g.roleBinding),
	}
}

func clusterRoleBindings(c Config, g *guard) *resource.Resource[*rbacv1.ClusterRoleBinding] {
	return &resource.Resource[*rbacv1.ClusterRoleBinding]{
		Name:     "clusterrolebindings",
		Singular: "clusterrolebinding",
		Kind:     "ClusterRoleBinding",
		New:      func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} },
		NewList:  func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		Default:  func(binding *rbacv1.ClusterRoleBinding) { defaultBinding(&binding.RoleRef, binding.Subjects) },
		Strategy: resource.Strategy[*rbacv1.ClusterRoleBinding]{
			Validate: func(_ context.Context, binding *rbacv1.ClusterRoleBinding) field.ErrorList {
				return validateBinding(&binding.ObjectMeta, binding.RoleRef, binding.Subjects, false)
			},
			ValidateUpdate: func(_ context.Context, binding, old *rbacv1.ClusterRoleBinding) field.ErrorList {
				errs := validateBinding(&binding.ObjectMeta, binding.RoleRef, binding.Subjects, false)
				errs = append(errs, validate.ObjectMetaUpdate(&binding.ObjectMeta, &old.ObjectMeta)...)
				return append(errs, sameRoleRef(binding.RoleRef, old.RoleRef)...)
			},
			CreateOnUpdate:      true,
			UnconditionalUpdate: true,
		},
		Columns: bindingColumns(
			rbacv1.ClusterRoleBinding{}.SwaggerDoc(),
			func(binding *rbacv1.ClusterRoleBinding) (rbacv1.RoleRef, []rbacv1.Subject) {
				return binding.RoleRef, binding.Subjects
			},
		),
		Customize: c.notifyWrites("clusterrolebindings"),
		Wrap:      guardWith(g.clusterRoleBinding),
	}
}

func defaultBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if ref.APIGroup == "" {
		ref.APIGroup = rbacv1.GroupName
	}
	for i := range subjects {
		if subjects[i].APIGroup == "" && (subjects[i].Kind == rbacv1.UserKind || subjects[i].Kind == rbacv1.GroupKind) {
			subjects[i].APIGroup = rbacv1.GroupName
		}
	}
}

// bindingColumns returns the columns of both kinds of bindings.
func bindingColumns[T resource.Object](doc map[string]string, of func(T) (rbacv1.RoleRef, []rbacv1.Subject)) []resource.Column[T] {
	subjects := func(header, kind string) resource.Column[T] {
		return resource.Column[T]{
			Name:        header,
			Description: header + " in the binding",
			Priority:    1,
			Cell: func(obj T) any {
				_, subjects := of(obj)
				return strings.Join(subjectNames(subjects, kind), ", ")
			},
		}
	}
	return []resource.Column[T]{
		resource.NameColumn[T](),
		{Name: "Role", Description: doc["roleRef"], Cell: func(obj T) any {
			ref, _ := of(obj)
			return ref.Kind + "/" + ref.Name
		}},
		resource.AgeColumn[T](),
		subjects("Users", rbacv1.UserKind),
		subjects("Groups", rbacv1.GroupKind),
		subjects("ServiceAccounts", rbacv1.ServiceAccountKind),
	}
}

// subjectNames returns the names of the subjects of one kind.
func subjectNames(subjects []rbacv1.Subject, kind string) []string {
	var names []string
	for _, subject := range subjects {
		switch {
		case subject.Kind != kind:
		case kind == rbacv1.ServiceAccountKind:
			names = append(names, subject.Namespace+"/"+subject.Name)
		default:
			names = append(names, subject.Name)
		}
	}
	return names
}
