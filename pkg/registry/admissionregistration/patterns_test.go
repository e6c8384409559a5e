package admissionregistration

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestLargePatterns verifies that no expression with a large regular expression is compiled, unless it was there before.
func TestLargePatterns(t *testing.T) {
	t.Parallel()
	large := "object.metadata.name.matches('" + strings.Repeat("a{0,1000}", 100) + "')"
	condition := admissionregistrationv1.MatchCondition{Name: "c", Expression: large}
	made := &admissionregistrationv1.ValidatingAdmissionPolicy{Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConditions:  []admissionregistrationv1.MatchCondition{condition},
		Variables:        []admissionregistrationv1.Variable{{Name: "v", Expression: large}},
		Validations:      []admissionregistrationv1.Validation{{Expression: large, MessageExpression: "object.metadata.name.find('" + strings.Repeat(".{1000}", 300) + "')"}},
		AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{Key: "k", ValueExpression: large + " ? '' : null"}},
	}}
	require.ElementsMatch(t, []string{
		"spec.matchConditions[0].expression", "spec.variables[0].expression", "spec.validations[0].expression",
		"spec.validations[0].messageExpression", "spec.auditAnnotations[0].valueExpression",
	}, tooLarge(validateValidatingPolicy(made)))

	mutating := &admissionregistrationv1.MutatingAdmissionPolicy{Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConditions: []admissionregistrationv1.MatchCondition{condition},
		Variables:       []admissionregistrationv1.Variable{{Name: "v", Expression: large}},
		Mutations: []admissionregistrationv1.Mutation{
			{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{Expression: large + " ? [] : []"}},
			{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: large + " ? Object{} : Object{}"}},
		},
	}}
	require.ElementsMatch(t, []string{
		"spec.matchConditions[0].expression", "spec.variables[0].expression", "spec.mutations[0].jsonPatch.expression", "spec.mutations[1].applyConfiguration.expression",
	}, tooLarge(validateMutatingPolicy(mutating)))

	hooks := &admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: []admissionregistrationv1.ValidatingWebhook{{MatchConditions: []admissionregistrationv1.MatchCondition{condition}}}}
	require.Equal(t, []string{"webhooks[0].matchConditions[0].expression"}, tooLarge(validatingWebhooks.Strategy.Validate(t.Context(), hooks)))
	bundle, err := os.ReadFile("../../request/rsakeys/testdata/large.pem")
	require.NoError(t, err)
	hooks.Webhooks[0].ClientConfig.CABundle = bundle
	require.ErrorContains(t, validatingWebhooks.Strategy.Validate(t.Context(), hooks).ToAggregate(), "clientConfig.caBundle: Invalid value: a key has 8676 bits")
	mutatingHooks := &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{{MatchConditions: []admissionregistrationv1.MatchCondition{condition}}}}
	require.Equal(t, []string{"webhooks[0].matchConditions[0].expression"}, tooLarge(mutatingWebhooks.Strategy.Validate(t.Context(), mutatingHooks)))

	changed := made.DeepCopy()
	changed.Spec.MatchConditions[0].Name = "renamed"
	require.Empty(t, tooLarge(validatingPolicies.Strategy.ValidateUpdate(t.Context(), changed, made)), "unchanged expressions must be accepted")
	changed.Spec.MatchConditions[0].Expression = "!" + large
	require.Equal(t, []string{"spec.matchConditions[0].expression"}, tooLarge(validatingPolicies.Strategy.ValidateUpdate(t.Context(), changed, made)))
}

// tooLarge returns the fields with regular expressions that are too large.
func tooLarge(errs field.ErrorList) (fields []string) {
	for _, err := range errs {
		if strings.Contains(err.Detail, "at most 2500 allowed") {
			fields = append(fields, err.Field)
		}
	}
	return fields
}
