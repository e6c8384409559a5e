// Package rbac describes the resources of rbac.authorization.k8s.io: roles, cluster roles and the bindings of both.
//
// As in Kubernetes, it prevents privilege escalation: a role may only contain rules that its writer has, unless the writer
// has the verb escalate on it. A role may only be bound by users who have all of its rules or the verb bind on it.
// Members of system:masters are exempt. Config provides the rules of users.
package rbac

import (
	"context"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request"
)

// Group returns rbac.authorization.k8s.io/v1. The zero Config is sufficient to register the types.
func Group(c Config) resource.Group {
	return resource.Group{
		GroupVersion: rbacv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			roles[*rbacv1.RoleList](c, "roles", true, validateRole, c.checkRole),
			bindings[*rbacv1.RoleBindingList](c, "rolebindings", true, rbacv1.RoleBinding{}.SwaggerDoc(), same),
			roles[*rbacv1.ClusterRoleList](c, "clusterroles", false, validateClusterRole, c.checkClusterRole),
			bindings[*rbacv1.ClusterRoleBindingList](c, "clusterrolebindings", false,
				rbacv1.ClusterRoleBinding{}.SwaggerDoc(), asRoleBinding),
		},
	}
}

func roles[L runtime.Object, T resource.Object](
	c Config, name string, namespaced bool, validateNew func(T) field.ErrorList,
	check func(ctx context.Context, role, old T) error,
) *resource.Resource[T, L] {
	created := resource.Column[T]{ // instead of the age
		Name:        "Created At",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		Cell:        func(obj T) any { return obj.GetCreationTimestamp().UTC().Format(time.RFC3339) },
	}
	return &resource.Resource[T, L]{
		Namespaced: namespaced,
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

func same(binding *rbacv1.RoleBinding) *rbacv1.RoleBinding { return binding }

// asRoleBinding returns a binding with the same memory. Both types have the same fields.
func asRoleBinding(binding *rbacv1.ClusterRoleBinding) *rbacv1.RoleBinding {
	return (*rbacv1.RoleBinding)(binding)
}

func bindings[L runtime.Object, T resource.Object](
	c Config, name string, namespaced bool, doc map[string]string, of func(T) *rbacv1.RoleBinding,
) *resource.Resource[T, L] {
	return &resource.Resource[T, L]{
		Namespaced: namespaced,
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
		Wrap:      guardWith(bindingCheck(c, name, namespaced, of)),
	}
}

func defaultBinding(binding *rbacv1.RoleBinding) {
	if binding.RoleRef.APIGroup == "" {
		binding.RoleRef.APIGroup = rbacv1.GroupName
	}
	for i := range binding.Subjects {
		subject := &binding.Subjects[i]
		if subject.APIGroup == "" && (subject.Kind == rbacv1.UserKind || subject.Kind == rbacv1.GroupKind) {
			subject.APIGroup = rbacv1.GroupName
		}
	}
}

func bindingColumns[T resource.Object](doc map[string]string, of func(T) *rbacv1.RoleBinding) []resource.Column[T] {
	subjects := func(header, kind string) resource.Column[T] {
		return resource.Column[T]{
			Name:        header,
			Description: header + " in the binding",
			Priority:    1,
			Cell:        func(obj T) any { return strings.Join(subjectNames(of(obj).Subjects, kind), ", ") },
		}
	}
	return []resource.Column[T]{
		resource.NameColumn[T](),
		{Name: "Role", Description: doc["roleRef"], Cell: func(obj T) any {
			ref := of(obj).RoleRef
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

// segmentName allows every valid URL path segment, such as system:discovery.
func segmentName(name string, prefix bool) []string {
	return path.ValidatePathSegmentName(name, prefix) //nolint:staticcheck // deprecated in favour of copies of it
}

func validateRole(role *rbacv1.Role) field.ErrorList {
	errs := validate.ObjectMeta(role, true, segmentName)
	return append(errs, validateRules(role.Rules, true)...)
}

func validateClusterRole(role *rbacv1.ClusterRole) field.ErrorList {
	errs := validate.ObjectMeta(role, false, segmentName)
	errs = append(errs, validateRules(role.Rules, false)...)
	if role.AggregationRule == nil {
		return errs
	}
	selectors := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(role.AggregationRule.ClusterRoleSelectors) == 0 {
		return append(errs, field.Required(selectors, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		options := metav1validation.LabelSelectorValidationOptions{}
		errs = append(errs, metav1validation.ValidateLabelSelector(&role.AggregationRule.ClusterRoleSelectors[i], options, selectors.Index(i))...)
	}
	return errs
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i, rule := range rules {
		if len(errs) > request.MaxErrors {
			break
		}
		errs = append(errs, validateRule(rule, namespaced, field.NewPath("rules").Index(i))...)
	}
	return errs
}

func validateRule(rule rbacv1.PolicyRule, namespaced bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(rule.Verbs) == 0 {
		errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
	}
	if len(rule.NonResourceURLs) > 0 {
		if namespaced {
			errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), rule.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
		}
		if len(rule.APIGroups) > 0 || len(rule.Resources) > 0 || len(rule.ResourceNames) > 0 {
			errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), rule.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
		}
		return errs
	}
	if len(rule.APIGroups) == 0 {
		errs = append(errs, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	if len(rule.Resources) == 0 {
		errs = append(errs, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
	}
	return errs
}

func validateBinding(binding *rbacv1.RoleBinding, namespaced bool) field.ErrorList {
	errs := validate.ObjectMeta(binding, namespaced, segmentName)
	kinds := []string{"ClusterRole"}
	if namespaced {
		kinds = []string{"Role", "ClusterRole"}
	}
	errs = append(errs, validateRoleRef(binding.RoleRef, kinds, field.NewPath("roleRef"))...)
	for i, subject := range binding.Subjects {
		if len(errs) > request.MaxErrors {
			break
		}
		errs = append(errs, validateSubject(subject, namespaced, field.NewPath("subjects").Index(i))...)
	}
	return errs
}

func validateRoleRef(ref rbacv1.RoleRef, kinds []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), ref.APIGroup, []string{rbacv1.GroupName}))
	}
	if !slices.Contains(kinds, ref.Kind) {
		errs = append(errs, field.NotSupported(at.Child("kind"), ref.Kind, kinds))
	}
	if ref.Name == "" {
		return append(errs, field.Required(at.Child("name"), ""))
	}
	errs = append(errs, validate.Messages(at.Child("name"), ref.Name, segmentName(ref.Name, false))...)
	return errs
}

func validateSubject(subject rbacv1.Subject, namespaced bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if subject.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	group := rbacv1.GroupName
	switch subject.Kind {
	case rbacv1.ServiceAccountKind:
		group = ""
		if subject.Name != "" {
			errs = append(errs, validate.Messages(at.Child("name"), subject.Name, apivalidation.ValidateServiceAccountName(subject.Name, false))...)
		}
		if !namespaced && subject.Namespace == "" {
			errs = append(errs, field.Required(at.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
		if subject.Name == "" {
			errs = append(errs, field.Invalid(at.Child("name"), subject.Name, strings.ToLower(subject.Kind)+" name cannot be empty"))
		}
	default:
		kinds := []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}
		return append(errs, field.NotSupported(at.Child("kind"), subject.Kind, kinds))
	}
	if subject.APIGroup != group {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), subject.APIGroup, []string{group}))
	}
	return errs
}

// validateBindingUpdate rejects changes of the role, which would need the permission to bind.
func validateBindingUpdate(binding, old *rbacv1.RoleBinding, namespaced bool) field.ErrorList {
	errs := append(validateBinding(binding, namespaced), validate.ObjectMetaUpdate(binding, old)...)
	if binding.RoleRef != old.RoleRef {
		errs = append(errs, field.Invalid(field.NewPath("roleRef"), binding.RoleRef, "cannot change roleRef"))
	}
	return errs
}
