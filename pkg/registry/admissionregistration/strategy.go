package admissionregistration

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request/patterns"
)

var (
	metadata = field.NewPath("metadata")
	spec     = field.NewPath("spec")
)

// extension describes a resource of this group, with lists of type L. wanted returns the desired state.
func extension[L runtime.Object, T resource.Object](
	setDefaults func(T), wanted func(T) any, check func(T) field.ErrorList, columns []resource.Column[T],
) *resource.Resource[T, L] {
	return &resource.Resource[T, L]{
		Categories: []string{"api-extensions"},
		Default:    setDefaults,
		Strategy:   strategy(wanted, check),
		Columns:    columns,
	}
}

// strategy is the common strategy of these resources: a generation that counts changes of the desired state, and
// validation of changes. Unchanged objects are not validated again, because the rules may have become stricter.
func strategy[T resource.Object](wanted func(T) any, check func(T) field.ErrorList) resource.Strategy[T] {
	return resource.Strategy[T]{
		PrepareForCreate: func(_ context.Context, obj T) { obj.SetGeneration(1) },
		PrepareForUpdate: func(_ context.Context, obj, old T) {
			obj.SetGeneration(old.GetGeneration())
			if !equality.Semantic.DeepEqual(wanted(obj), wanted(old)) {
				obj.SetGeneration(old.GetGeneration() + 1)
			}
		},
		Validate: func(_ context.Context, obj T) field.ErrorList {
			return append(validateMeta(obj), check(obj)...)
		},
		ValidateUpdate: func(_ context.Context, obj, old T) field.ErrorList {
			errs := apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, metadata)
			if equality.Semantic.DeepEqual(wanted(obj), wanted(old)) {
				return errs
			}
			return append(errs, patterns.WithoutFormer(check(obj), func() field.ErrorList { return check(old) })...)
		},
	}
}

func validateMeta(obj metav1.Object) field.ErrorList {
	return apivalidation.ValidateObjectMetaAccessor(obj, false, apivalidation.NameIsDNSSubdomain, metadata)
}

func ptrDefault[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}

const all = "*"

var (
	failurePolicies = []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore}
	matchPolicies   = []admissionregistrationv1.MatchPolicyType{admissionregistrationv1.Equivalent, admissionregistrationv1.Exact}
	operations      = []admissionregistrationv1.OperationType{
		admissionregistrationv1.OperationAll, admissionregistrationv1.Connect, admissionregistrationv1.Create,
		admissionregistrationv1.Delete, admissionregistrationv1.Update,
	}
	scopes               = []admissionregistrationv1.ScopeType{admissionregistrationv1.AllScopes, admissionregistrationv1.ClusterScope, admissionregistrationv1.NamespacedScope}
	reinvocationPolicies = []admissionregistrationv1.ReinvocationPolicyType{admissionregistrationv1.IfNeededReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy}
)

func oneOf[T ~string](value T, path *field.Path, known ...T) field.ErrorList {
	if slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}

func optional[T ~string](value *T, path *field.Path, known ...T) field.ErrorList {
	if value == nil {
		return nil
	}
	return oneOf(*value, path, known...)
}

// required is like optional for values with a default.
func required[T ~string](value *T, path *field.Path, known ...T) field.ErrorList {
	if value == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	return oneOf(*value, path, known...)
}

func noWildcardWithOthers[T ~string](values []T, path *field.Path) field.ErrorList {
	switch {
	case len(values) == 0:
		return field.ErrorList{field.Required(path, "")}
	case len(values) > 1 && slices.Contains(values, T(all)):
		return field.ErrorList{field.Invalid(path, values, "if '*' is present, must not specify other values")}
	default:
		return nil
	}
}

func validateRule(rule *admissionregistrationv1.RuleWithOperations, path *field.Path) field.ErrorList {
	errs := noWildcardWithOthers(rule.Operations, path.Child("operations"))
	for i, operation := range rule.Operations {
		errs = append(errs, oneOf(operation, path.Child("operations").Index(i), operations...)...)
	}
	errs = append(errs, noWildcardWithOthers(rule.APIGroups, path.Child("apiGroups"))...)
	errs = append(errs, noWildcardWithOthers(rule.APIVersions, path.Child("apiVersions"))...)
	for i, version := range rule.APIVersions {
		if version == "" {
			errs = append(errs, field.Required(path.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, validateResources(rule.Resources, path.Child("resources"))...)
	return append(errs, optional(rule.Scope, path.Child("scope"), scopes...)...)
}

// validateResources validates names such as "pods", "pods/*", "*/scale" and "*/*". None may include another one.
func validateResources(resources []string, path *field.Path) field.ErrorList {
	if len(resources) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	whole, subs := map[string]bool{}, map[string]bool{}
	for i, name := range resources {
		if name == "" {
			errs = append(errs, field.Required(path.Index(i), ""))
			continue
		}
		if name == "*/*" && len(resources) > 1 {
			errs = append(errs, field.Invalid(path, resources, "if '*/*' is present, must not specify other resources"))
			break
		}
		resource, sub, isSub := strings.Cut(name, "/")
		if !isSub {
			continue
		}
		if whole[resource] {
			errs = append(errs, field.Invalid(path.Index(i), name, "if '"+resource+"/*' is present, must not specify "+name))
		}
		if subs[sub] {
			errs = append(errs, field.Invalid(path.Index(i), name, "if '*/"+sub+"' is present, must not specify "+name))
		}
		whole[resource] = whole[resource] || sub == all
		subs[sub] = subs[sub] || resource == all
	}
	if len(resources) > 1 && slices.Contains(resources, all) && slices.ContainsFunc(resources, func(r string) bool { return r != all && !strings.Contains(r, "/") }) {
		errs = append(errs, field.Invalid(path, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}

func defaultMatch(match *admissionregistrationv1.MatchResources) {
	if match == nil {
		return
	}
	ptrDefault(&match.MatchPolicy, admissionregistrationv1.Equivalent)
	ptrDefault(&match.NamespaceSelector, metav1.LabelSelector{})
	ptrDefault(&match.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionregistrationv1.NamedRuleWithOperations{match.ResourceRules, match.ExcludeResourceRules} {
		for i := range rules {
			ptrDefault(&rules[i].Scope, admissionregistrationv1.AllScopes)
		}
	}
}

func validateSelector(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if selector == nil {
		return nil
	}
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path)
}

func validateMatch(match *admissionregistrationv1.MatchResources, path *field.Path) field.ErrorList {
	if match == nil {
		return nil
	}
	errs := required(match.MatchPolicy, path.Child("matchPolicy"), matchPolicies...)
	errs = append(errs, validateSelector(match.NamespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, validateSelector(match.ObjectSelector, path.Child("objectSelector"))...)
	for i := range match.ResourceRules {
		errs = append(errs, validateNamedRule(&match.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range match.ExcludeResourceRules {
		errs = append(errs, validateNamedRule(&match.ExcludeResourceRules[i], path.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

func validateNamedRule(rule *admissionregistrationv1.NamedRuleWithOperations, path *field.Path) field.ErrorList {
	errs := validateRule(&rule.RuleWithOperations, path)
	seen := validate.Seen[string]{}
	for i, name := range rule.ResourceNames {
		if name == "" {
			errs = append(errs, field.Required(path.Child("resourceNames").Index(i), ""))
		}
		errs = append(errs, seen.Add(name, path.Child("resourceNames").Index(i))...)
	}
	return errs
}
