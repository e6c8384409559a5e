package admissionregistration

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

const maxAuditAnnotations = 20
const maxMessageExpression = 5 * 1024

var reasons = []metav1.StatusReason{
	metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnauthorized,
}

var mutatingPolicies = extension[*admissionregistrationv1.MutatingAdmissionPolicyList](
	func(obj *admissionregistrationv1.MutatingAdmissionPolicy) {
		ptrDefault(&obj.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatch(obj.Spec.MatchConstraints)
	},
	func(obj *admissionregistrationv1.MutatingAdmissionPolicy) any { return obj.Spec },
	validateMutatingPolicy,
	policyColumns("Mutations", "Mutations indicates the number of mutations rules defined in this configuration",
		func(obj *admissionregistrationv1.MutatingAdmissionPolicy) (int, *admissionregistrationv1.ParamKind) {
			return len(obj.Spec.Mutations), obj.Spec.ParamKind
		}),
)

type validatingPolicy = admissionregistrationv1.ValidatingAdmissionPolicy

var validatingPolicies = withStatus(extension[*admissionregistrationv1.ValidatingAdmissionPolicyList](
	func(obj *validatingPolicy) {
		ptrDefault(&obj.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatch(obj.Spec.MatchConstraints)
	},
	func(obj *validatingPolicy) any { return obj.Spec },
	validateValidatingPolicy,
	policyColumns("Validations", "Validations indicates the number of validation rules defined in this configuration",
		func(obj *validatingPolicy) (int, *admissionregistrationv1.ParamKind) {
			return len(obj.Spec.Validations), obj.Spec.ParamKind
		}),
))

// withStatus adds the status to a description of policies, and returns it.
func withStatus[L runtime.Object](
	policies *resource.Resource[*validatingPolicy, L],
) *resource.Resource[*validatingPolicy, L] {
	s := &policies.Strategy
	create, update := s.PrepareForCreate, s.PrepareForUpdate
	s.PrepareForCreate = func(ctx context.Context, obj *validatingPolicy) {
		obj.Status = admissionregistrationv1.ValidatingAdmissionPolicyStatus{}
		create(ctx, obj)
	}
	s.PrepareForUpdate = func(ctx context.Context, obj, old *validatingPolicy) {
		obj.Status = old.Status
		update(ctx, obj, old)
	}
	s.ResetFields = [][]string{{"status"}}
	policies.Subresources = []resource.Subresource[*validatingPolicy]{{
		Name: "status",
		Strategy: resource.Strategy[*validatingPolicy]{
			PrepareForUpdate: func(_ context.Context, obj, old *validatingPolicy) {
				obj.Spec, obj.Generation = old.Spec, old.Generation
			},
			ValidateUpdate: func(_ context.Context, obj, _ *validatingPolicy) field.ErrorList {
				return validateMeta(obj)
			},
			UnconditionalUpdate: true,
			ResetFields:         [][]string{{"spec"}},
		},
	}}
	return policies
}

func policyColumns[T resource.Object](header, description string, of func(T) (int, *admissionregistrationv1.ParamKind)) []resource.Column[T] {
	return []resource.Column[T]{
		resource.NameColumn[T](),
		{Name: header, Description: description, Cell: func(obj T) any {
			count, _ := of(obj)
			return int64(count)
		}},
		{Name: "ParamKind", Description: "ParamKind specifies the kind of resources used to parameterize this policy", Cell: func(obj T) any {
			_, kind := of(obj)
			if kind == nil {
				return "<unset>"
			}
			return kind.APIVersion + "/" + kind.Kind
		}},
		resource.AgeColumn[T](),
	}
}

// validatePolicy validates the common fields of both kinds, and returns a compiler with the policy's variables.
func validatePolicy(policy *admissionregistrationv1.ValidatingAdmissionPolicySpec) (*expressions, field.ErrorList) {
	e, err := newPolicyExpressions(policy.ParamKind != nil)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(spec, err)}
	}
	errs := required(policy.FailurePolicy, spec.Child("failurePolicy"), failurePolicies...)
	errs = append(errs, validateParamKind(policy.ParamKind, spec.Child("paramKind"))...)
	constraints := spec.Child("matchConstraints")
	switch policy.MatchConstraints {
	case nil:
		errs = append(errs, field.Required(constraints, ""))
	default:
		errs = append(errs, validateMatch(policy.MatchConstraints, constraints)...)
		if len(policy.MatchConstraints.ResourceRules) == 0 {
			errs = append(errs, field.Required(constraints.Child("resourceRules"), ""))
		}
	}
	errs = append(errs, e.variables(policy.Variables, spec.Child("variables"))...)
	return e, append(errs, validateMatchConditions(e, policy.MatchConditions, spec.Child("matchConditions"))...)
}

func validateParamKind(kind *admissionregistrationv1.ParamKind, path *field.Path) field.ErrorList {
	if kind == nil {
		return nil
	}
	var errs field.ErrorList
	if kind.APIVersion == "" {
		errs = append(errs, field.Required(path.Child("apiVersion"), ""))
	} else if gv, err := schema.ParseGroupVersion(kind.APIVersion); err != nil || gv.Version == "" {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), kind.APIVersion, "must be a version, or a group and a version"))
	}
	if kind.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), ""))
	} else if msgs := validation.IsDNS1035Label(strings.ToLower(kind.Kind)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(path.Child("kind"), kind.Kind, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ",")))
	}
	return errs
}

func validateMutatingPolicy(obj *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
	e, errs := validatePolicy(&admissionregistrationv1.ValidatingAdmissionPolicySpec{
		ParamKind: obj.Spec.ParamKind, MatchConstraints: obj.Spec.MatchConstraints, FailurePolicy: obj.Spec.FailurePolicy,
		MatchConditions: obj.Spec.MatchConditions, Variables: obj.Spec.Variables,
	})
	if e == nil {
		return errs
	}
	if len(obj.Spec.Mutations) == 0 {
		errs = append(errs, field.Required(spec.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range obj.Spec.Mutations {
		errs = append(errs, validateMutation(e, &obj.Spec.Mutations[i], spec.Child("mutations").Index(i))...)
	}
	if obj.Spec.ReinvocationPolicy == "" {
		return append(errs, field.Required(spec.Child("reinvocationPolicy"), ""))
	}
	return append(errs, oneOf(obj.Spec.ReinvocationPolicy, spec.Child("reinvocationPolicy"), reinvocationPolicies...)...)
}

func validateMutation(e *expressions, mutation *admissionregistrationv1.Mutation, path *field.Path) field.ErrorList {
	options := e.options
	options.HasPatchTypes = true
	switch mutation.PatchType {
	case admissionregistrationv1.PatchTypeJSONPatch:
		if mutation.ApplyConfiguration != nil {
			return field.ErrorList{field.Invalid(path.Child("applyConfiguration"), "{applyConfiguration}", "patchType is JSONPatch, but applyConfiguration is set")}
		}
		if mutation.JSONPatch == nil {
			return field.ErrorList{field.Required(path.Child("jsonPatch"), "")}
		}
		return e.check(&patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}, options, path.Child("jsonPatch", "expression"))
	case admissionregistrationv1.PatchTypeApplyConfiguration:
		if mutation.JSONPatch != nil {
			return field.ErrorList{field.Invalid(path.Child("jsonPatch"), "{jsonPatch}", "patchType is ApplyConfiguration, but jsonPatch is set")}
		}
		if mutation.ApplyConfiguration == nil {
			return field.ErrorList{field.Required(path.Child("applyConfiguration"), "")}
		}
		return e.check(&patch.ApplyConfigurationCondition{Expression: mutation.ApplyConfiguration.Expression}, options, path.Child("applyConfiguration", "expression"))
	case "":
		return field.ErrorList{field.Required(path.Child("patchType"), "")}
	default:
		return oneOf(mutation.PatchType, path.Child("patchType"), admissionregistrationv1.PatchTypeJSONPatch, admissionregistrationv1.PatchTypeApplyConfiguration)
	}
}

func validateValidatingPolicy(obj *validatingPolicy) field.ErrorList {
	e, errs := validatePolicy(&obj.Spec)
	if e == nil {
		return errs
	}
	if len(obj.Spec.Validations) == 0 && len(obj.Spec.AuditAnnotations) == 0 {
		const either = "validations or auditAnnotations must contain at least one item"
		errs = append(errs, field.Required(spec.Child("validations"), either), field.Required(spec.Child("auditAnnotations"), either))
	}
	for i := range obj.Spec.Validations {
		errs = append(errs, validateValidation(e, &obj.Spec.Validations[i], spec.Child("validations").Index(i))...)
	}
	return append(errs, validateAuditAnnotations(e, obj, spec.Child("auditAnnotations"))...)
}

func validateValidation(e *expressions, v *admissionregistrationv1.Validation, path *field.Path) field.ErrorList {
	errs := e.check(&validating.ValidationCondition{Expression: v.Expression}, e.options, path.Child("expression"))
	errs = append(errs, optional(v.Reason, path.Child("reason"), reasons...)...)
	if strings.Contains(strings.TrimSpace(v.Message), "\n") {
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "message must not contain line breaks"))
	}
	if v.Message != "" && strings.TrimSpace(v.Message) == "" {
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "message must be non-empty if specified"))
	}
	if v.Message == "" && strings.Contains(strings.TrimSpace(v.Expression), "\n") {
		errs = append(errs, field.Required(path.Child("message"), "message must be specified if expression contains line breaks"))
	}
	if v.MessageExpression != "" {
		options := e.options
		options.HasAuthorizer = false
		errs = append(errs, e.check(&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, options, path.Child("messageExpression"))...)
		if len(v.MessageExpression) > maxMessageExpression {
			errs = append(errs, field.TooLong(path.Child("messageExpression"), "", maxMessageExpression))
		}
	}
	return errs
}

func validateAuditAnnotations(e *expressions, obj *validatingPolicy, path *field.Path) field.ErrorList {
	annotations := obj.Spec.AuditAnnotations
	var errs field.ErrorList
	if len(annotations) > maxAuditAnnotations {
		errs = append(errs, field.TooMany(path, len(annotations), maxAuditAnnotations))
	}
	keys := validate.Seen[string]{}
	for i := range annotations {
		a, path := &annotations[i], path.Index(i)
		if a.Key == "" {
			errs = append(errs, field.Required(path.Child("key"), ""))
		} else {
			// In the audit log, the key follows the name of the policy.
			errs = append(errs, validate.Messages(path.Child("key"), a.Key, validation.IsQualifiedName(obj.Name+"/"+a.Key))...)
		}
		errs = append(errs, keys.Add(a.Key, path.Child("key"))...)
		errs = append(errs, e.check(&validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression}, e.options, path.Child("valueExpression"))...)
	}
	return errs
}

var validationActions = []admissionregistrationv1.ValidationAction{
	admissionregistrationv1.Audit, admissionregistrationv1.Deny, admissionregistrationv1.Warn,
}

// bindingSpec is the spec of both kinds of bindings. Mutating ones have no actions.
type bindingSpec = admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec

var mutatingBindings = bindings[*admissionregistrationv1.MutatingAdmissionPolicyBindingList](
	func(obj *admissionregistrationv1.MutatingAdmissionPolicyBinding) bindingSpec {
		from := obj.Spec
		return bindingSpec{PolicyName: from.PolicyName, ParamRef: from.ParamRef, MatchResources: from.MatchResources}
	},
	validateBinding,
)

var validatingBindings = bindings[*admissionregistrationv1.ValidatingAdmissionPolicyBindingList](
	func(obj *admissionregistrationv1.ValidatingAdmissionPolicyBinding) bindingSpec { return obj.Spec },
	func(binding bindingSpec) field.ErrorList {
		actions := validateActions(binding.ValidationActions, spec.Child("validationActions"))
		return append(validateBinding(binding), actions...)
	},
)

func bindings[L runtime.Object, T resource.Object](
	of func(T) bindingSpec, check func(bindingSpec) field.ErrorList,
) *resource.Resource[T, L] {
	return extension[L](
		func(obj T) { defaultMatch(of(obj).MatchResources) },
		func(obj T) any { return of(obj) },
		func(obj T) field.ErrorList { return check(of(obj)) },
		[]resource.Column[T]{
			resource.NameColumn[T](),
			{
				Name: "PolicyName", Description: "PolicyName indicates the policy definition which the policy binding binded to",
				Cell: func(obj T) any { return of(obj).PolicyName },
			},
			{
				Name: "ParamRef", Description: "ParamRef indicates the param resource which sets the configuration param",
				Cell: func(obj T) any { return refCell(of(obj).ParamRef) },
			},
			resource.AgeColumn[T](),
		},
	)
}

func refCell(ref *admissionregistrationv1.ParamRef) string {
	switch {
	case ref == nil:
		return "<unset>"
	case ref.Namespace != "":
		return ref.Namespace + "/" + ref.Name
	default:
		return "*/" + ref.Name
	}
}

func validateBinding(binding bindingSpec) field.ErrorList {
	var errs field.ErrorList
	if policy := binding.PolicyName; policy == "" {
		errs = append(errs, field.Required(spec.Child("policyName"), ""))
	} else {
		errs = append(errs, validate.Messages(spec.Child("policyName"), policy, apivalidation.NameIsDNSSubdomain(policy, false))...)
	}
	errs = append(errs, validateParamRef(binding.ParamRef, spec.Child("paramRef"))...)
	return append(errs, validateMatch(binding.MatchResources, spec.Child("matchResources"))...)
}

func validateParamRef(ref *admissionregistrationv1.ParamRef, path *field.Path) field.ErrorList {
	if ref == nil {
		return nil
	}
	var errs field.ErrorList
	switch {
	case ref.Name != "" && ref.Selector != nil:
		errs = append(errs,
			field.Forbidden(path.Child("name"), "name and selector are mutually exclusive"),
			field.Forbidden(path.Child("selector"), "name and selector are mutually exclusive"))
	case ref.Name == "" && ref.Selector == nil:
		errs = append(errs, field.Required(path, "one of name or selector must be specified"))
	case ref.Name != "":
		errs = append(errs, validate.Messages(path.Child("name"), ref.Name, apivalidation.NameIsDNSSubdomain(ref.Name, false))...)
	default:
		errs = append(errs, validateSelector(ref.Selector, path.Child("selector"))...)
	}
	if ref.ParameterNotFoundAction == nil || *ref.ParameterNotFoundAction == "" {
		return append(errs, field.Required(path.Child("parameterNotFoundAction"), ""))
	}
	return append(errs, oneOf(*ref.ParameterNotFoundAction, path.Child("parameterNotFoundAction"),
		admissionregistrationv1.AllowAction, admissionregistrationv1.DenyAction)...)
}

func validateActions(actions []admissionregistrationv1.ValidationAction, path *field.Path) field.ErrorList {
	if len(actions) == 0 {
		return field.ErrorList{field.Required(path, "at least one validation action is required")}
	}
	var errs field.ErrorList
	seen := validate.Seen[admissionregistrationv1.ValidationAction]{}
	for i, action := range actions {
		errs = append(errs, oneOf(action, path.Index(i), validationActions...)...)
		errs = append(errs, seen.Add(action, path.Index(i))...)
	}
	if slices.Contains(actions, admissionregistrationv1.Deny) && slices.Contains(actions, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(path, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	return errs
}
