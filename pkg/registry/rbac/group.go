// Package rbac describes the resources of rbac.authorization.k8s.io: roles, cluster roles and the bindings of both.
//
// As in Kubernetes, it prevents privilege escalation: a role may only contain rules that its writer has, unless the writer
// has the verb escalate on it. A role may only be bound by users who have all of its rules or the verb bind on it.
// Members of system:masters are exempt. Config provides the rules of users.
package rbac

import (
	"context"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

// Group returns rbac.authorization.k8s.io/v1. The zero Config is sufficient to register the types.
func Group(c Config) resource.Group {
	guard := &guard{authorizer: c.Authorizer, rules: c.Rules}
	return resource.Group{
		GroupVersion: rbacv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			roles(c, "Role", true, func() runtime.Object { return &rbacv1.RoleList{} }, validateRole, guard.role),
			bindings(c, guard, "RoleBinding", true, rbacv1.RoleBinding{}.SwaggerDoc(), fieldsOfRoleBinding,
				func() runtime.Object { return &rbacv1.RoleBindingList{} }),
			roles(c, "ClusterRole", false, func() runtime.Object { return &rbacv1.ClusterRoleList{} }, validateClusterRole, guard.clusterRole),
			bindings(c, guard, "ClusterRoleBinding", false, rbacv1.ClusterRoleBinding{}.SwaggerDoc(), fieldsOfClusterRoleBinding,
				func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} }),
		},
	}
}

func roles[T resource.Object](
	c Config, kind string, namespaced bool, newList func() runtime.Object, validateNew func(T) field.ErrorList, check func(ctx context.Context, role, old T) error,
) *resource.Resource[T] {
	name := strings.ToLower(kind) + "s"
	created := resource.Column[T]{ // instead of the age
		Name:        "Created At",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		Cell:        func(obj T) any { return obj.GetCreationTimestamp().UTC().Format(time.RFC3339) },
	}
	return &resource.Resource[T]{
		Name:       name,
		Kind:       kind,
		Namespaced: namespaced,
		NewList:    newList,
		Strategy: resource.Strategy[T]{
			Validate: func(_ context.Context, role T) field.ErrorList { return validateNew(role) },
			ValidateUpdate: func(_ context.Context, role, old T) field.ErrorList {
				return append(validateNew(role), validate.ObjectMetaUpdate(role, old)...)
			},
			CreateOnUpdate:      true,
			UnconditionalUpdate: true,
		},
		Columns:   []resource.Column[T]{resource.NameColumn[T](), created},
		Customize: c.notifyWrites(name),
		Wrap:      guardWith(check),
	}
}

func fieldsOfRoleBinding(binding *rbacv1.RoleBinding) bindingFields {
	return bindingFields{binding, &binding.RoleRef, binding.Subjects}
}

func fieldsOfClusterRoleBinding(binding *rbacv1.ClusterRoleBinding) bindingFields {
	return bindingFields{binding, &binding.RoleRef, binding.Subjects}
}

func bindings[T resource.Object](
	c Config, g *guard, kind string, namespaced bool, doc map[string]string, of func(T) bindingFields, newList func() runtime.Object,
) *resource.Resource[T] {
	name := strings.ToLower(kind) + "s"
	return &resource.Resource[T]{
		Name:       name,
		Kind:       kind,
		Namespaced: namespaced,
		NewList:    newList,
		Default:    func(binding T) { defaultBinding(of(binding)) },
		Strategy: resource.Strategy[T]{
			Validate: func(_ context.Context, binding T) field.ErrorList { return validateBinding(of(binding), namespaced) },
			ValidateUpdate: func(_ context.Context, binding, old T) field.ErrorList {
				return validateBindingUpdate(of(binding), of(old), namespaced)
			},
			CreateOnUpdate:      true,
			UnconditionalUpdate: true,
		},
		Columns:   bindingColumns(doc, of),
		Customize: c.notifyWrites(name),
		Wrap:      guardWith(bindingCheck(g, name, namespaced, of)),
	}
}

func defaultBinding(binding bindingFields) {
	if binding.ref.APIGroup == "" {
		binding.ref.APIGroup = rbacv1.GroupName
	}
	for i := range binding.subjects {
		subject := &binding.subjects[i]
		if subject.APIGroup == "" && (subject.Kind == rbacv1.UserKind || subject.Kind == rbacv1.GroupKind) {
			subject.APIGroup = rbacv1.GroupName
		}
	}
}

func bindingColumns[T resource.Object](doc map[string]string, of func(T) bindingFields) []resource.Column[T] {
	subjects := func(header, kind string) resource.Column[T] {
		return resource.Column[T]{
			Name:        header,
			Description: header + " in the binding",
			Priority:    1,
			Cell:        func(obj T) any { return strings.Join(subjectNames(of(obj).subjects, kind), ", ") },
		}
	}
	return []resource.Column[T]{
		resource.NameColumn[T](),
		{Name: "Role", Description: doc["roleRef"], Cell: func(obj T) any {
			ref := of(obj).ref
			return ref.Kind + "/" + ref.Name
		}},
		resource.AgeColumn[T](),
		subjects("Users", rbacv1.UserKind),
		subjects("Groups", rbacv1.GroupKind),
		subjects("ServiceAccounts", rbacv1.ServiceAccountKind),
	}
}

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
