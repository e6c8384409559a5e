package policytypes

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
)

// The checker does not end by itself with what asks for it, so that an author could keep it from
// all others.
const (
	// budget is how long one policy is looked at, up to the end of an expression.
	budget = 5 * time.Second
	// maxVariables is how many variables a policy may have to be looked at: each is compiled
	// for each expression.
	maxVariables = 100
	// maxResources is how many combinations of groups, versions and resources it may match:
	// each is looked up, until some are found.
	maxResources = 1000
)

// tooMuch returns the warning that a policy is too large to be looked at, if it is.
func tooMuch(policy *admissionregistrationv1.ValidatingAdmissionPolicy) []admissionregistrationv1.ExpressionWarning {
	spec := field.NewPath("spec")
	if n := len(policy.Spec.Variables); n > maxVariables {
		return unchecked(spec.Child("variables"), fmt.Sprintf("there are %d variables, and %d may be", n, maxVariables))
	}
	matched := 0
	if policy.Spec.MatchConstraints != nil {
		for i := range policy.Spec.MatchConstraints.ResourceRules {
			rule := &policy.Spec.MatchConstraints.ResourceRules[i]
			matched += len(rule.APIGroups) * len(rule.APIVersions) * len(rule.Resources)
		}
	}
	if matched > maxResources {
		return unchecked(spec.Child("matchConstraints", "resourceRules"), fmt.Sprintf("%d combinations of groups, versions and resources match, and %d may", matched, maxResources))
	}
	return nil
}

// checkAll is the checker's Check, up to the end of ctx: what follows then is not looked at.
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
			return append(warnings, unchecked(at, fmt.Sprintf("what comes before it took longer than %s. Nor is what follows", budget))...)
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
