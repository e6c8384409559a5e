package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request"
)

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

// bindingFields are the common fields of both kinds of bindings.
type bindingFields struct {
	meta     metav1.Object
	ref      *rbacv1.RoleRef
	subjects []rbacv1.Subject
}

func validateBinding(binding bindingFields, namespaced bool) field.ErrorList {
	errs := validate.ObjectMeta(binding.meta, namespaced, segmentName)
	kinds := []string{"ClusterRole"}
	if namespaced {
		kinds = []string{"Role", "ClusterRole"}
	}
	errs = append(errs, validateRoleRef(*binding.ref, kinds, field.NewPath("roleRef"))...)
	for i, subject := range binding.subjects {
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
func validateBindingUpdate(binding, old bindingFields, namespaced bool) field.ErrorList {
	errs := append(validateBinding(binding, namespaced), validate.ObjectMetaUpdate(binding.meta, old.meta)...)
	if *binding.ref != *old.ref {
		errs = append(errs, field.Invalid(field.NewPath("roleRef"), *binding.ref, "cannot change roleRef"))
	}
	return errs
}
