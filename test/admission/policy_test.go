package admission

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// matchResources matches the creation of ConfigMaps and widgets.
func matchResources() *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"", "example.com"}, APIVersions: []string{"v1"}, Resources: []string{"configmaps", "widgets"}},
		},
	}}}
}

func (c *cluster) validatingPolicy(t *testing.T, name string, spec admissionregistrationv1.ValidatingAdmissionPolicySpec, ref *admissionregistrationv1.ParamRef, actions ...admissionregistrationv1.ValidationAction) {
	t.Helper()
	if spec.MatchConstraints == nil {
		spec.MatchConstraints = matchResources()
	}
	_, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ParamRef: ref, ValidationActions: actions},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func (c *cluster) mutatingPolicy(t *testing.T, name string, spec admissionregistrationv1.MutatingAdmissionPolicySpec, ref *admissionregistrationv1.ParamRef) {
	t.Helper()
	spec.MatchConstraints, spec.ReinvocationPolicy = matchResources(), admissionregistrationv1.NeverReinvocationPolicy
	_, err := c.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(),
		&admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name, ParamRef: ref},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// mutations returns the spec of a policy with one mutation: a JSON patch, or else an apply configuration.
func mutations(jsonPatch, applyConfiguration string) admissionregistrationv1.MutatingAdmissionPolicySpec {
	m := admissionregistrationv1.Mutation{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{Expression: jsonPatch}}
	if applyConfiguration != "" {
		m = admissionregistrationv1.Mutation{
			PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: applyConfiguration},
		}
	}
	return admissionregistrationv1.MutatingAdmissionPolicySpec{Mutations: []admissionregistrationv1.Mutation{m}}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	flags, log := auditFlags(t)
	all := harness.Start(t, harness.Options{ExtraArgs: map[string][]string{"shard": flags}})
	both := clusters(t, all, "a", "b")
	a, b := both[0], both[1]
	a.defineWidgets(t)
	b.defineWidgets(t)

	t.Run("type checking", func(t *testing.T) { typeChecking(t, a, b) })
	t.Run("audit", func(t *testing.T) { auditAnnotations(t, a, log) })
	t.Run("mutating with parameters", func(t *testing.T) { mutatingParameters(t, a, b) })
	t.Run("parameters", func(t *testing.T) { parameters(t, a, b) })

	t.Run("warnings, access and removal", func(t *testing.T) {
		a.validatingPolicy(t, "warn", admissionregistrationv1.ValidatingAdmissionPolicySpec{
			Variables: []admissionregistrationv1.Variable{{Name: "allowed", Expression: "authorizer.group('').resource('configmaps').namespace('default').check('create').allowed()"}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "!variables.allowed", MessageExpression: "'the user ' + request.userInfo.username + ' may'",
			}},
		}, nil, admissionregistrationv1.Warn)
		eventually(t, "a warning", func() bool {
			require.NoError(t, a.dryRun(t.Context(), "x"))
			return len(a.warnings.Take()) > 0
		})
		require.NoError(t, a.dryRun(t.Context(), "x"))
		require.Equal(t, []string{"Validation failed for ValidatingAdmissionPolicy 'warn' with binding 'warn': the user kcp-admin may"}, a.warnings.Take())
		a.deleteValidatingPolicy(t, "warn")
		eventually(t, "the end of the warnings", func() bool {
			require.NoError(t, a.dryRun(t.Context(), "x"))
			return len(a.warnings.Take()) == 0
		})
	})

	t.Run("mutating", func(t *testing.T) {
		for _, in := range both {
			in.mutatingPolicy(t, "patch", mutations(`[JSONPatch{op: "add", path: "/metadata/labels", value: {"by": "`+in.name.String()+`"}}]`, ""), nil)
			in.untilLabelled(t, in.name.String())
			obj, err := in.widget(t.Context(), "patched", nil)
			require.NoError(t, err)
			require.Equal(t, map[string]string{"by": in.name.String()}, obj.GetLabels())
		}
		a.mutatingPolicy(t, "apply", mutations("", `Object{metadata: Object.metadata{annotations: {"applied": "yes"}}}`), nil)
		eventually(t, "the configuration to be applied", func() bool {
			obj, err := a.configMap(t.Context(), "y", nil, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil && obj.Annotations["applied"] == "yes"
		})
		obj, err := a.widget(t.Context(), "applied", nil)
		require.NoError(t, err)
		require.Equal(t, "yes", obj.GetAnnotations()["applied"])
		obj, err = b.widget(t.Context(), "applied", nil)
		require.NoError(t, err)
		require.NotContains(t, obj.GetAnnotations(), "applied")
	})

	t.Run("writes of controllers", func(t *testing.T) { controllerWrites(t, all) })

	t.Run("invalid", func(t *testing.T) {
		_, err := a.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "g"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{},
				Variables:        []admissionregistrationv1.Variable{{Name: "a-b", Expression: "1"}},
				Validations:      []admissionregistrationv1.Validation{{Expression: "object.metadata.name"}, {Expression: "params.x == 1"}},
			},
		}, metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		for _, field := range []string{"spec.matchConstraints.resourceRules", "spec.variables[0].name", "spec.validations[1].expression"} {
			require.ErrorContains(t, err, field)
		}
	})
}

// parameters checks a policy in two logical clusters with different parameters of the same name.
func parameters(t *testing.T, a, b *cluster) {
	spec := admissionregistrationv1.ValidatingAdmissionPolicySpec{
		ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
		MatchConditions: []admissionregistrationv1.MatchCondition{{
			Name: "counted", Expression: "object.kind == 'Widget' || object.metadata.name.startsWith('counted')",
		}},
		Validations: []admissionregistrationv1.Validation{{
			Expression:        "size(object.metadata.name) <= int(params.data.max)",
			MessageExpression: "'longer than ' + params.data.max",
		}},
	}
	ref := &admissionregistrationv1.ParamRef{Name: "limits", Namespace: "default", ParameterNotFoundAction: new(admissionregistrationv1.DenyAction)}
	for in, limit := range map[*cluster]string{a: "9", b: "20"} {
		_, err := in.configMap(t.Context(), "limits", map[string]string{"max": limit}, metav1.CreateOptions{})
		require.NoError(t, err)
		in.validatingPolicy(t, "length", spec, ref, admissionregistrationv1.Deny)
	}
	eventually(t, "the policy to deny", func() bool { return a.dryRun(t.Context(), "counted-and-long") != nil })
	err := a.dryRun(t.Context(), "counted-and-long")
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "ValidatingAdmissionPolicy 'length' with binding 'length' denied request: longer than 9")
	require.NoError(t, a.dryRun(t.Context(), "counted"))
	require.NoError(t, a.dryRun(t.Context(), "whatever-it-may-be"))
	_, err = a.widget(t.Context(), "a-long-name", nil)
	require.True(t, apierrors.IsInvalid(err), "%v", err)

	require.NoError(t, b.dryRun(t.Context(), "counted-and-long"))
	eventually(t, "the limit of the other logical cluster", func() bool { return b.dryRun(t.Context(), "counted-and-longer-than-that") != nil })
	require.ErrorContains(t, b.dryRun(t.Context(), "counted-and-longer-than-that"), "longer than 20")

	limits := harness.Get(t, a.CoreV1().ConfigMaps("default"), "limits")
	limits.Data["max"] = "100"
	_, err = a.CoreV1().ConfigMaps("default").Update(t.Context(), limits, metav1.UpdateOptions{})
	require.NoError(t, err)
	eventually(t, "the updated parameter", func() bool { return a.dryRun(t.Context(), "counted-and-long") == nil })
	require.NoError(t, a.CoreV1().ConfigMaps("default").Delete(t.Context(), "limits", metav1.DeleteOptions{}))
	eventually(t, "the policy to deny without its parameter", func() bool { return a.dryRun(t.Context(), "counted") != nil })
	require.ErrorContains(t, a.dryRun(t.Context(), "counted"), "no params found")
	for _, in := range []*cluster{a, b} {
		in.deleteValidatingPolicy(t, "length")
		eventually(t, "the removal of the policy", func() bool { return in.dryRun(t.Context(), "counted-and-longer-than-that") == nil })
	}
}

// mutatingParameters checks a mutating policy in two logical clusters with different parameters of
// a custom kind.
func mutatingParameters(t *testing.T, a, b *cluster) {
	spec := mutations("", `Object{metadata: Object.metadata{labels: {"stamp": string(params.spec.stamp)}}}`)
	spec.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Widget"}
	spec.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "stamped", Expression: "object.metadata.name == 'stamped'"}}
	spec.FailurePolicy = new(admissionregistrationv1.Fail)
	ref := &admissionregistrationv1.ParamRef{Name: "stamp", Namespace: "default", ParameterNotFoundAction: new(admissionregistrationv1.DenyAction)}
	stamp := func(in *cluster) (string, error) {
		obj, err := in.configMap(t.Context(), "stamped", nil, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return "", err
		}
		return obj.Labels["stamp"], nil
	}
	for in, value := range map[*cluster]string{a: "of-a", b: "of-b"} {
		_, err := in.widget(t.Context(), "stamp", map[string]any{"stamp": value})
		require.NoError(t, err)
		in.mutatingPolicy(t, "stamp", spec, ref)
		eventually(t, "the label "+value, func() bool {
			got, err := stamp(in)
			return err == nil && got == value
		})
	}
	_, err := a.dynamic.Resource(widgets).Namespace("default").Patch(t.Context(), "stamp", types.MergePatchType, []byte(`{"spec":{"stamp":"new"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "the updated parameter", func() bool {
		got, err := stamp(a)
		return err == nil && got == "new"
	})
	got, err := stamp(b)
	require.NoError(t, err)
	require.Equal(t, "of-b", got)
	require.NoError(t, a.dynamic.Resource(widgets).Namespace("default").Delete(t.Context(), "stamp", metav1.DeleteOptions{}))
	eventually(t, "the policy to deny without its parameter", func() bool {
		_, err := stamp(a)
		return err != nil
	})
	for _, in := range []*cluster{a, b} {
		require.NoError(t, in.AdmissionregistrationV1().MutatingAdmissionPolicies().Delete(t.Context(), "stamp", metav1.DeleteOptions{}))
		require.NoError(t, in.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Delete(t.Context(), "stamp", metav1.DeleteOptions{}))
		eventually(t, "the removal of the policy", func() bool {
			got, err := stamp(in)
			return err == nil && got == ""
		})
	}
}

func (c *cluster) deleteValidatingPolicy(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(t.Context(), name, metav1.DeleteOptions{}))
	require.NoError(t, c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// controllerWrites checks that controllers can fill and delete namespaces, and delete the
// workspace, although a policy denies everything.
func controllerWrites(t *testing.T, all *harness.Cluster) {
	c := clusters(t, all, "locked")[0]
	c.createNamespace(t, "early")
	harness.Create(t, c.CoreV1().ConfigMaps("early"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "content"}})

	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"configmaps", "serviceaccounts", "secrets", "roles", "rolebindings", "clusterroles", "clusterrolebindings"}},
	}
	c.validatingPolicy(t, "never", admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule}}},
		Validations:      []admissionregistrationv1.Validation{{Expression: "false"}},
	}, nil, admissionregistrationv1.Deny)
	eventually(t, "the policy to deny writes of users", func() bool { return c.dryRun(t.Context(), "x") != nil })
	require.ErrorContains(t, c.CoreV1().ConfigMaps("early").Delete(t.Context(), "content", metav1.DeleteOptions{}), "ValidatingAdmissionPolicy 'never'")

	c.createNamespace(t, "late")
	eventually(t, "the service account of the new namespace", func() bool {
		_, err := c.CoreV1().ServiceAccounts("late").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	require.NoError(t, c.CoreV1().Namespaces().Delete(t.Context(), "early", metav1.DeleteOptions{}))
	eventually(t, "the removal of the namespace", func() bool {
		_, err := c.CoreV1().Namespaces().Get(t.Context(), "early", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	workspaces := kinds.Workspaces.In(c.factory.Cluster(logicalcluster.NewPath("root")))
	require.NoError(t, workspaces.Delete(t.Context(), "locked", metav1.DeleteOptions{}))
	eventually(t, "the removal of the workspace", func() bool {
		_, err := workspaces.Get(t.Context(), "locked", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
