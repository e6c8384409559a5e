package admission

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// validations returns a policy with n expressions, including a message, of the given size each.
func validations(name string, n, bytes int) *admissionregistrationv1.ValidatingAdmissionPolicy {
	p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	text := strings.Repeat("x", bytes)
	for range n / 2 {
		p.Spec.Validations = append(p.Spec.Validations, admissionregistrationv1.Validation{Expression: text, MessageExpression: text})
	}
	if n%2 == 1 {
		p.Spec.Variables = []admissionregistrationv1.Variable{{Name: "v", Expression: text}}
	}
	return p
}

// mutations returns a policy with n expressions of the given size each.
func mutations(name string, n, bytes int) *admissionregistrationv1.MutatingAdmissionPolicy {
	p := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	text := strings.Repeat("x", bytes)
	for i := range n {
		m := admissionregistrationv1.Mutation{JSONPatch: &admissionregistrationv1.JSONPatch{Expression: text}}
		if i%2 == 1 {
			m = admissionregistrationv1.Mutation{ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: text}}
		}
		p.Spec.Mutations = append(p.Spec.Mutations, m)
	}
	return p
}

// admitPolicy runs the mutating plugins, which run before expressions are compiled.
func (r *rig) admitPolicy(t *testing.T, obj, old runtime.Object) error {
	t.Helper()
	resource, kind := "validatingadmissionpolicies", "ValidatingAdmissionPolicy"
	switch obj.(type) {
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		resource, kind = "mutatingadmissionpolicies", "MutatingAdmissionPolicy"
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		resource, kind = "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"
	case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
		resource, kind = "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"
	}
	operation := admission.Create
	if old != nil {
		operation = admission.Update
	}
	v1 := admissionregistrationv1.SchemeGroupVersion
	a := admission.NewAttributesRecord(obj, old, v1.WithKind(kind), "", "p", v1.WithResource(resource), "", operation, nil, false, &user.DefaultInfo{Name: "tenant"})
	return r.Interface().(admission.MutationInterface).Admit(request.WithClusterName(t.Context(), name(0)), a, objects)
}

// TestPolicyLimits checks the limits of one policy and of a logical cluster. Policies beyond them are kept.
func TestPolicyLimits(t *testing.T) {
	const all = 64 << 10
	r := newRig(t, 2, func(c *Config) { c.OwnVersion = func(version string) (string, error) { return version, nil } })
	for name, tc := range map[string]struct {
		obj, old runtime.Object
		want     string
	}{
		"at the limits":                    {obj: validations("p", 1000, 65)},
		"too many expressions":             {obj: validations("p", 1001, 1), want: "it has 1001 expressions, at most 1000 allowed"},
		"more expressions above the limit": {obj: validations("p", 1003, 1), old: validations("p", 1002, 1), want: "it has 1003 expressions, at most 1000 allowed"},
		"unchanged number above the limit": {obj: validations("p", 1002, 1), old: validations("p", 1002, 1)},
		"too many bytes":                   {obj: validations("p", 3, all/3+1), want: fmt.Sprintf("it has %d bytes of expressions, at most %d allowed", all+2, all)},
		"more bytes above the limit":       {obj: validations("p", 1, all+2), old: validations("p", 1, all+1), want: "bytes of expressions"},
		"fewer bytes above the limit":      {obj: validations("p", 1, all+1), old: validations("p", 1, all+2)},
		"mutations at the limit":           {obj: mutations("p", 2, all/2)},
		"too many mutations":               {obj: mutations("p", 1001, 1), want: "it has 1001 expressions, at most 1000 allowed"},
		"too many bytes of mutations":      {obj: mutations("p", 2, all/2+1), want: "bytes of expressions"},
	} {
		t.Run(name, func(t *testing.T) {
			err := r.admitPolicy(t, tc.obj, tc.old)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, tc.want)
		})
	}
	for i := range 32 {
		v, m := validations(fmt.Sprint("v", i), 1, all), mutations(fmt.Sprint("m", i), 1, all)
		v.Annotations, m.Annotations = in(name(0)), in(name(0))
		r.server.Put(t, kinds.ValidatingAdmissionPolicies.GroupVersionResource, v)
		r.server.Put(t, kinds.MutatingAdmissionPolicies.GroupVersionResource, m)
	}
	require.Eventually(t, func() bool { return r.admitPolicy(t, validations("p", 1, 1), nil) != nil }, testTimeout, time.Millisecond)
	require.ErrorContains(t, r.admitPolicy(t, mutations("p", 1, 1), nil), "the policies of the logical cluster c0 have 4194305 bytes of expressions, at most 4194304 allowed")
	require.NoError(t, r.admitPolicy(t, validations("v0", 1, all), validations("v0", 1, all)), "an unchanged policy must be accepted")
	require.NoError(t, r.admitPolicy(t, validations("v0", 1, all-1), validations("v0", 1, all)), "a policy that shrinks must be accepted")
}

func TestPolicyBindingLimits(t *testing.T) {
	r := newRig(t, 2, func(c *Config) { c.OwnVersion = func(version string) (string, error) { return version, nil } })
	for i := range 1000 {
		meta := metav1.ObjectMeta{Name: fmt.Sprint("b", i), Annotations: in(name(0))}
		r.server.Put(t, kinds.ValidatingAdmissionPolicyBindings.GroupVersionResource, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta})
		meta.Annotations = in(name(i % 2))
		r.server.Put(t, kinds.MutatingAdmissionPolicyBindings.GroupVersionResource, &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: meta})
	}
	validating := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	require.Eventually(t, func() bool { return r.admitPolicy(t, validating, nil) != nil }, testTimeout, time.Millisecond)
	err := r.admitPolicy(t, validating, nil)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "the logical cluster c0 has 1000 bindings of this kind, at most 1000 allowed: delete bindings")
	require.NoError(t, r.admitPolicy(t, validating, validating), "an existing binding must be updatable")
	require.NoError(t, r.admitPolicy(t, &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, nil), "bindings of the other kind must not be counted")
}

// TestPolicyPatterns checks that the programs of regular expressions count as memory.
func TestPolicyPatterns(t *testing.T) {
	r := newRig(t, 2, func(c *Config) { c.OwnVersion = func(version string) (string, error) { return version, nil } })
	policy := func(name string, n int) *admissionregistrationv1.ValidatingAdmissionPolicy {
		p := validations(name, 0, 0)
		for range n {
			p.Spec.Validations = append(p.Spec.Validations, admissionregistrationv1.Validation{Expression: "object.metadata.name.matches('a{0,1000}')"}) // 2000 instructions
		}
		return p
	}
	for i := range 103 {
		p := policy(fmt.Sprint("p", i), 20)
		p.Annotations = in(name(0))
		r.server.Put(t, kinds.ValidatingAdmissionPolicies.GroupVersionResource, p)
	}
	require.Eventually(t, func() bool { return r.admitPolicy(t, policy("p", 20), nil) != nil }, testTimeout, time.Millisecond)
	err := r.admitPolicy(t, policy("p", 20), nil)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "bytes of expressions, at most 4194304 allowed")
	require.Error(t, r.admitPolicy(t, policy("p1", 25), policy("p1", 20)))
	require.NoError(t, r.admitPolicy(t, policy("p1", 19), policy("p1", 20)), "a policy that shrinks must be accepted")
	require.NoError(t, r.admitPolicy(t, validations("p", 1, 100), nil), "a policy below the limit must be accepted")
}
