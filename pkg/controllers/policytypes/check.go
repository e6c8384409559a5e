package policytypes

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
)

// The checker does not observe a context, so an author could block the policies of others.
const (
	// budget limits the time for one policy. It is checked between expressions.
	//
	//reference:limit object | ValidatingAdmissionPolicy: time of the type check | a warning in its status
	budget = 5 * time.Second
	// maxVariables limits the variables of a policy, because each of them is compiled for each expression.
	//
	//reference:limit object | ValidatingAdmissionPolicy: variables in the type check | a warning in its status
	maxVariables = 100
	// maxResources limits the matching combinations of groups, versions and resources, because each of them is looked up.
	//
	//reference:limit object | ValidatingAdmissionPolicy: combinations of groups, versions and resources in the type check | a warning in its status
	maxResources = 1000
)

// tooMuch returns a warning if a policy is too large to be checked.
func tooMuch(policy *admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
	spec := field.NewPath("spec")
	if n := len(policy.Spec.Variables); n > maxVariables {
		return unchecked(spec.Child("variables"), fmt.Sprintf("%d variables, at most %d allowed", n, maxVariables))
	}
	matched := 0
	if policy.Spec.MatchConstraints != nil {
		for i := range policy.Spec.MatchConstraints.ResourceRules {
			rule := &policy.Spec.MatchConstraints.ResourceRules[i]
			matched += len(rule.APIGroups) * len(rule.APIVersions) * len(rule.Resources)
		}
	}
	if matched > maxResources {
		return unchecked(spec.Child("matchConstraints", "resourceRules"), fmt.Sprintf("%d combinations of groups, versions and resources, at most %d allowed", matched, maxResources))
	}
	return nil
}

// checkAll checks all expressions of a policy until ctx is done.
func checkAll(ctx context.Context, checker validating.TypeChecker, policy *admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
	var warnings []admissionregistrationv1.ExpressionWarning
	types := checker.CreateContext(policy)
	check := func(at *field.Path, expression string) {
		if results := checker.CheckExpression(types, expression); len(results) > 0 {
			warnings = append(warnings, admissionregistrationv1.ExpressionWarning{FieldRef: at.String(), Warning: results.String()})
		}
	}
	validations := field.NewPath("spec", "validations")
	for i, v := range policy.Spec.Validations {
		at := validations.Index(i)
		if ctx.Err() != nil {
			return append(warnings, unchecked(at, fmt.Sprintf("the preceding expressions took longer than %s. The following ones are not checked either", budget))...)
		}
		check(at.Child("expression"), v.Expression)
		if v.MessageExpression != "" {
			check(at.Child("messageExpression"), v.MessageExpression)
		}
	}
	return warnings
}

func unchecked(at *field.Path, why string) []admissionregistrationv1.ExpressionWarning {
	return []admissionregistrationv1.ExpressionWarning{{FieldRef: at.String(), Warning: "not checked: " + why}}
}
