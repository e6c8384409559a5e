package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/harness"
)

// defineGadgets defines a kind with a type of spec.size.
func (c *cluster) defineGadgets(t *testing.T, size string) {
	t.Helper()
	c.define(t, "gadget", "Gadget", apiextensionsv1.JSONSchemaProps{
		Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"size": {Type: size}},
	})
}

// typeChecking checks that the status of a policy reports expressions that do not match the types
// of its own logical cluster.
func typeChecking(t *testing.T, a, b *cluster) {
	a.defineGadgets(t, "string")
	b.defineGadgets(t, "integer")
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "typed"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"v1"}, Resources: []string{"gadgets"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: "object.metadata.name != ''"}, {Expression: "object.spec.size < 3"}},
		},
	}
	checked := func(in *cluster, generation int64) []admissionregistrationv1.ExpressionWarning {
		var got *admissionregistrationv1.ValidatingAdmissionPolicy
		eventually(t, "the type check", func() bool {
			var err error
			got, err = in.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "typed", metav1.GetOptions{})
			require.NoError(t, err)
			return got.Status.ObservedGeneration == generation
		})
		require.NotNil(t, got.Status.TypeChecking)
		require.Equal(t, generation, got.Generation, "the type check changed the generation")
		return got.Status.TypeChecking.ExpressionWarnings
	}
	for _, in := range []*cluster{a, b} {
		harness.Create(t, in.AdmissionregistrationV1().ValidatingAdmissionPolicies(), policy)
	}
	warnings := checked(a, 1)
	require.Len(t, warnings, 1)
	require.Equal(t, "spec.validations[1].expression", warnings[0].FieldRef)
	require.Contains(t, warnings[0].Warning, "example.com/v1, Kind=Gadget")
	require.Contains(t, warnings[0].Warning, "found no matching overload")
	require.Empty(t, checked(b, 1), "the type of the other logical cluster was used")

	fixed := harness.Get(t, a.AdmissionregistrationV1().ValidatingAdmissionPolicies(), "typed")
	fixed.Spec.Validations[1].Expression = "size(object.spec.size) < 3"
	_, err := a.AdmissionregistrationV1().ValidatingAdmissionPolicies().Update(t.Context(), fixed, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Empty(t, checked(a, 2))
	for _, in := range []*cluster{a, b} {
		require.NoError(t, in.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(t.Context(), "typed", metav1.DeleteOptions{}))
	}
}
