package policytypes

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/discovery"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestExpensivePoliciesDoNotBlockTheWorker: policies that would take minutes to check are not checked, or only partially, and this
// is reported.
func TestExpensivePoliciesDoNotBlockTheWorker(t *testing.T) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprint("n", i)
	}
	for name, test := range map[string]struct {
		spec           admissionregistrationv1.ValidatingAdmissionPolicySpec
		field, warning string
	}{
		"too many combinations of names": {
			admissionregistrationv1.ValidatingAdmissionPolicySpec{MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{Rule: admissionregistrationv1.Rule{APIGroups: names, APIVersions: names, Resources: names}},
			}}}},
			"spec.matchConstraints.resourceRules", "1000000000 combinations",
		},
		"too many variables": {
			admissionregistrationv1.ValidatingAdmissionPolicySpec{Variables: make([]admissionregistrationv1.Variable, maxVariables+1)},
			"spec.variables", "101 variables",
		},
	} {
		t.Run(name, func(t *testing.T) {
			policy := &admissionregistrationv1.ValidatingAdmissionPolicy{Spec: test.spec}
			policy.Generation = 3
			var written *admissionregistrationv1.ValidatingAdmissionPolicy
			r := &policyReconciler{
				get: func(client.Key) (*admissionregistrationv1.ValidatingAdmissionPolicy, error) { return policy, nil },
				discover: func(client.Key) (discovery.DiscoveryInterface, error) {
					t.Error("the policy is checked")
					return nil, context.Canceled
				},
				updateStatus: func(_ context.Context, _ client.Key, updated *admissionregistrationv1.ValidatingAdmissionPolicy) error {
					written = updated
					return nil
				},
			}
			require.NoError(t, r.reconcile(t.Context(), client.Key{}))
			require.EqualValues(t, 3, written.Status.ObservedGeneration)
			require.Len(t, written.Status.TypeChecking.ExpressionWarnings, 1)
			require.Equal(t, test.field, written.Status.TypeChecking.ExpressionWarnings[0].FieldRef)
			require.Contains(t, written.Status.TypeChecking.ExpressionWarnings[0].Warning, test.warning)
		})
	}

	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	policy.Spec.Validations = []admissionregistrationv1.Validation{{Expression: "true"}, {Expression: "true"}}
	require.Empty(t, checkAll(t.Context(), validating.TypeChecker{}, policy))
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	warnings := checkAll(late, validating.TypeChecker{}, policy)
	require.Len(t, warnings, 1)
	require.Equal(t, "spec.validations[0]", warnings[0].FieldRef)
	require.Contains(t, warnings[0].Warning, "longer than 5s")
}
