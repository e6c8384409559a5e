package admissionregistration

import (
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

var validationActions = []admissionregistrationv1.ValidationAction{
	admissionregistrationv1.Audit, admissionregistrationv1.Deny, admissionregistrationv1.Warn,
}

var mutatingBindings = &resource.Resource[*admissionregistrationv1.MutatingAdmissionPolicyBinding]{
	Name:       "mutatingadmissionpolicybindings",
	Kind:       "MutatingAdmissionPolicyBinding",
	Categories: []string{"api-extensions"},
	NewList:    func() runtime.Object { return &admissionregistrationv1.MutatingAdmissionPolicyBindingList{} },
	Default: func(obj *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
		defaultMatch(obj.Spec.MatchResources)
	},
	Strategy: strategy(
		func(obj *admissionregistrationv1.MutatingAdmissionPolicyBinding) any { return obj.Spec },
		func(obj *admissionregistrationv1.MutatingAdmissionPolicyBinding) field.ErrorList {
			return validateBinding(obj.Spec.PolicyName, obj.Spec.ParamRef, obj.Spec.MatchResources)
		},
	),
	Columns: bindingColumns(func(obj *admissionregistrationv1.MutatingAdmissionPolicyBinding) (string, *admissionregistrationv1.ParamRef) {
		return obj.Spec.PolicyName, obj.Spec.ParamRef
	}),
}

var validatingBindings = &resource.Resource[*admissionregistrationv1.ValidatingAdmissionPolicyBinding]{
	Name:       "validatingadmissionpolicybindings",
	Kind:       "ValidatingAdmissionPolicyBinding",
	Categories: []string{"api-extensions"},
	NewList:    func() runtime.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{} },
	Default: func(obj *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
		defaultMatch(obj.Spec.MatchResources)
	},
	Strategy: strategy(
		func(obj *admissionregistrationv1.ValidatingAdmissionPolicyBinding) any { return obj.Spec },
		func(obj *admissionregistrationv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
			errs := validateBinding(obj.Spec.PolicyName, obj.Spec.ParamRef, obj.Spec.MatchResources)
			return append(errs, validateActions(obj.Spec.ValidationActions, spec.Child("validationActions"))...)
		},
	),
	Columns: bindingColumns(func(obj *admissionregistrationv1.ValidatingAdmissionPolicyBinding) (string, *admissionregistrationv1.ParamRef) {
		return obj.Spec.PolicyName, obj.Spec.ParamRef
	}),
}

func bindingColumns[T resource.Object](of func(T) (policy string, param *admissionregistrationv1.ParamRef)) []resource.Column[T] {
	return []resource.Column[T]{
		resource.NameColumn[T](),
		{Name: "PolicyName", Description: "PolicyName indicates the policy definition which the policy binding binded to", Cell: func(obj T) any {
			policy, _ := of(obj)
			return policy
		}},
		{Name: "ParamRef", Description: "ParamRef indicates the param resource which sets the configuration param", Cell: func(obj T) any {
			_, ref := of(obj)
			switch {
			case ref == nil:
				return "<unset>"
			case ref.Namespace != "":
				return ref.Namespace + "/" + ref.Name
			default:
				return "*/" + ref.Name
			}
		}},
		resource.AgeColumn[T](),
	}
}

func validateBinding(policy string, ref *admissionregistrationv1.ParamRef, match *admissionregistrationv1.MatchResources) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Required(spec.Child("policyName"), ""))
	} else {
		errs = append(errs, validate.Messages(spec.Child("policyName"), policy, apivalidation.NameIsDNSSubdomain(policy, false))...)
	}
	errs = append(errs, validateParamRef(ref, spec.Child("paramRef"))...)
	return append(errs, validateMatch(match, spec.Child("matchResources"))...)
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
	for i, action := range actions {
		errs = append(errs, oneOf(action, path.Index(i), validationActions...)...)
		if slices.Contains(actions[:i], action) {
			errs = append(errs, field.Duplicate(path.Index(i), action))
		}
	}
	if slices.Contains(actions, admissionregistrationv1.Deny) && slices.Contains(actions, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(path, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	return errs
}
