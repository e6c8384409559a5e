package admissionregistration

import (
	"context"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
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

var mutatingPolicies = &resource.Resource[*admissionregistrationv1.MutatingAdmissionPolicy]{
	Name:       "mutatingadmissionpolicies",
	Kind:       "MutatingAdmissionPolicy",
	Categories: []string{"api-extensions"},
	NewList:    func() runtime.Object { return &admissionregistrationv1.MutatingAdmissionPolicyList{} },
	Default: func(obj *admissionregistrationv1.MutatingAdmissionPolicy) {
		ptrDefault(&obj.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatch(obj.Spec.MatchConstraints)
	},
	Strategy: strategy(
		func(obj *admissionregistrationv1.MutatingAdmissionPolicy) any { return obj.Spec },
		validateMutatingPolicy,
	),
	Columns: policyColumns("Mutations", "Mutations indicates the number of mutations rules defined in this configuration",
		func(obj *admissionregistrationv1.MutatingAdmissionPolicy) (int, *admissionregistrationv1.ParamKind) {
			return len(obj.Spec.Mutations), obj.Spec.ParamKind
		}),
}

var validatingPolicies = &resource.Resource[*admissionregistrationv1.ValidatingAdmissionPolicy]{
	Name:       "validatingadmissionpolicies",
	Kind:       "ValidatingAdmissionPolicy",
	Categories: []string{"api-extensions"},
	NewList:    func() runtime.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyList{} },
	Default: func(obj *admissionregistrationv1.ValidatingAdmissionPolicy) {
		ptrDefault(&obj.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatch(obj.Spec.MatchConstraints)
	},
	Strategy: validatingPolicyStrategy(),
	Columns: policyColumns("Validations", "Validations indicates the number of validation rules defined in this configuration",
		func(obj *admissionregistrationv1.ValidatingAdmissionPolicy) (int, *admissionregistrationv1.ParamKind) {
			return len(obj.Spec.Validations), obj.Spec.ParamKind
		}),
	Subresources: []resource.Subresource[*admissionregistrationv1.ValidatingAdmissionPolicy]{{
		Name: "status",
		Strategy: resource.Strategy[*admissionregistrationv1.ValidatingAdmissionPolicy]{
			PrepareForUpdate: func(_ context.Context, obj, old *admissionregistrationv1.ValidatingAdmissionPolicy) {
				obj.Spec, obj.Generation = old.Spec, old.Generation
			},
			ValidateUpdate: func(_ context.Context, obj, _ *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
				return validateMeta(obj)
			},
			UnconditionalUpdate: true,
			ResetFields:         [][]string{{"spec"}},
		},
	}},
}

func validatingPolicyStrategy() resource.Strategy[*admissionregistrationv1.ValidatingAdmissionPolicy] {
	s := strategy(
		func(obj *admissionregistrationv1.ValidatingAdmissionPolicy) any { return obj.Spec },
		validateValidatingPolicy,
	)
	create, update := s.PrepareForCreate, s.PrepareForUpdate
	s.PrepareForCreate = func(ctx context.Context, obj *admissionregistrationv1.ValidatingAdmissionPolicy) {
		obj.Status = admissionregistrationv1.ValidatingAdmissionPolicyStatus{}
		create(ctx, obj)
	}
	s.PrepareForUpdate = func(ctx context.Context, obj, old *admissionregistrationv1.ValidatingAdmissionPolicy) {
		obj.Status = old.Status
		update(ctx, obj, old)
	}
	s.ResetFields = [][]string{{"status"}}
	return s
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

// policyFields are the common fields of both kinds of policies.
type policyFields struct {
	paramKind        *admissionregistrationv1.ParamKind
	matchConstraints *admissionregistrationv1.MatchResources
	failurePolicy    *admissionregistrationv1.FailurePolicyType
	matchConditions  []admissionregistrationv1.MatchCondition
	variables        []admissionregistrationv1.Variable
}

// validatePolicy validates the common fields and returns a compiler with the policy's variables.
func validatePolicy(policy policyFields) (*expressions, field.ErrorList) {
	e, err := newPolicyExpressions(policy.paramKind != nil)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(spec, err)}
	}
	errs := required(policy.failurePolicy, spec.Child("failurePolicy"), failurePolicies...)
	errs = append(errs, validateParamKind(policy.paramKind, spec.Child("paramKind"))...)
	constraints := spec.Child("matchConstraints")
	switch policy.matchConstraints {
	case nil:
		errs = append(errs, field.Required(constraints, ""))
	default:
		errs = append(errs, validateMatch(policy.matchConstraints, constraints)...)
		if len(policy.matchConstraints.ResourceRules) == 0 {
			errs = append(errs, field.Required(constraints.Child("resourceRules"), ""))
		}
	}
	errs = append(errs, e.variables(policy.variables, spec.Child("variables"))...)
	return e, append(errs, validateMatchConditions(e, policy.matchConditions, spec.Child("matchConditions"))...)
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
	e, errs := validatePolicy(policyFields{
		obj.Spec.ParamKind, obj.Spec.MatchConstraints, obj.Spec.FailurePolicy, obj.Spec.MatchConditions, obj.Spec.Variables,
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

func validateValidatingPolicy(obj *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
	e, errs := validatePolicy(policyFields{
		obj.Spec.ParamKind, obj.Spec.MatchConstraints, obj.Spec.FailurePolicy, obj.Spec.MatchConditions, obj.Spec.Variables,
	})
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

func validateAuditAnnotations(e *expressions, obj *admissionregistrationv1.ValidatingAdmissionPolicy, path *field.Path) field.ErrorList {
	annotations := obj.Spec.AuditAnnotations
	var errs field.ErrorList
	if len(annotations) > maxAuditAnnotations {
		errs = append(errs, field.TooMany(path, len(annotations), maxAuditAnnotations))
	}
	keys := map[string]bool{}
	for i := range annotations {
		a, path := &annotations[i], path.Index(i)
		if a.Key == "" {
			errs = append(errs, field.Required(path.Child("key"), ""))
		} else {
			// In the audit log, the key follows the name of the policy.
			errs = append(errs, validate.Messages(path.Child("key"), a.Key, validation.IsQualifiedName(obj.Name+"/"+a.Key))...)
		}
		if keys[a.Key] {
			errs = append(errs, field.Duplicate(path.Child("key"), a.Key))
		}
		keys[a.Key] = true
		errs = append(errs, e.check(&validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression}, e.options, path.Child("valueExpression"))...)
	}
	return errs
}
