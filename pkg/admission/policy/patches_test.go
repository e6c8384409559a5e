package policy

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/shardplane/shardplane/pkg/request/patchcosts"
)

// patched applies the only mutation of a policy to an object with a list of n numbers, and returns the new
// length of the list.
func patched(ctx context.Context, t *testing.T, mutation admissionregistrationv1.Mutation, n int) (int, error) {
	t.Helper()
	list := make([]any, n)
	for i := range list {
		list[i] = int64(i)
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Thing", "metadata": map[string]any{"name": "x"}, "spec": map[string]any{"l": list},
	}}
	gvk, gvr := object.GroupVersionKind(), schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
	attributes := admission.NewAttributesRecord(object, nil, gvk, "", "x", gvr, "", admission.Create, nil, false, nil)
	evaluator := compileMutating(&mutating.Policy{Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{Mutations: []admissionregistrationv1.Mutation{mutation}}})
	require.NoError(t, evaluator.Error)
	require.Len(t, evaluator.Mutators, 1)
	result, err := evaluator.Mutators[0].Patch(evaluator.CompositedCompiler.CreateContext(ctx), patch.Request{
		MatchedResource:     gvr,
		VersionedAttributes: &admission.VersionedAttributes{Attributes: attributes, VersionedObject: admission.NewLazyObject(object), VersionedKind: gvk},
		ObjectInterfaces:    admission.NewObjectInterfacesFromScheme(runtime.NewScheme()),
		TypeConverter:       managedfields.NewDeducedTypeConverter(),
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return 0, err
	}
	u, ok := result.(*unstructured.Unstructured)
	require.True(t, ok)
	after, _, err := unstructured.NestedSlice(u.Object, "spec", "l")
	require.NoError(t, err)
	return len(after), nil
}

func jsonPatch(expression string) admissionregistrationv1.Mutation {
	return admissionregistrationv1.Mutation{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{Expression: expression}}
}

func configuration(expression string) admissionregistrationv1.Mutation {
	return admissionregistrationv1.Mutation{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: expression}}
}

func TestPatchLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mutation admissionregistrationv1.Mutation
		n        int
		expected int
		err      string
	}{
		"inserted":           {jsonPatch(`object.spec.l.map(x, JSONPatch{op: "add", path: "/spec/l/0", value: x})`), 1000, 2000, ""},
		"too many inserted":  {jsonPatch(`object.spec.l.map(x, JSONPatch{op: "add", path: "/spec/l/0", value: x})`), 1001, 0, "the patch has 1001 operations"},
		"too many moved":     {jsonPatch(`object.spec.l.map(x, JSONPatch{op: "move", from: "/spec/l/0", path: "/spec/l/1"})`), 501, 0, "the patch has 1002 operations"},
		"appended":           {jsonPatch(`object.spec.l.map(x, JSONPatch{op: "add", path: "/spec/l/-", value: x})`), 1001, 2002, ""},
		"replaced":           {jsonPatch(`[JSONPatch{op: "replace", path: "/spec/l", value: object.spec.l}]`), 5000, 5000, ""},
		"repeated":           {jsonPatch(`object.spec.l.map(x, JSONPatch{op: "add", path: "/spec/l/-", value: object.spec.l})`), 1000, 0, "the patch is larger than"},
		"repeated object":    {jsonPatch(`object.spec.l.map(x, JSONPatch{op: "add", path: "/spec/l/-", value: Object.spec.l{v: object.spec.l}})`), 1000, 0, "the patch is larger than"},
		"quantity":           {jsonPatch(`[JSONPatch{op: "add", path: "/spec/l/-", value: "1e-" + "100001"}]`), 1, 0, "have exponents of more than 100000 together"},
		"applied quantity":   {configuration(`Object{spec: Object.spec{l: ["1e100001"]}}`), 1, 0, "have exponents of more than 100000 together"},
		"applied":            {configuration(`Object{spec: Object.spec{l: object.spec.l}}`), 1000, 1000, ""},
		"too many applied":   {configuration(`Object{spec: Object.spec{l: object.spec.l}}`), 1001, 0, "more than 1000 entries"},
		"repeated in fields": {configuration(`Object{spec: Object.spec{m: [0, 1, 2].map(x, Object.spec.m{v: object.spec.l})}}`), 400, 0, "more than 1000 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := patched(t.Context(), t, c.mutation, c.n)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.expected, n)
		})
	}
	require.Equal(t, 1000, patchcosts.MaxKeyed)
}

// TestPatchesEnd checks that no further patch is applied after the context of a request has ended.
func TestPatchesEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := patched(ctx, t, jsonPatch(`[JSONPatch{op: "add", path: "/spec/l/-", value: 1}]`), 1)
	require.ErrorIs(t, err, context.Canceled)
}
