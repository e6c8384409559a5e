package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/shardplane/shardplane/test/harness"
)

// clientFor returns a client for a new user with all rights for policies and the rights of rules.
func (c *cluster) clientFor(t *testing.T, name string, rules ...rbacv1.PolicyRule) kubernetes.Interface {
	t.Helper()
	everything := rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"*"}}
	harness.Create(t, c.RbacV1().ClusterRoles(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: append(rules, everything)})
	for _, role := range []string{name, "system:kcp:workspace:access"} {
		harness.Create(t, c.RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		})
	}
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name}
	return harness.Clientset(t, config, "")
}

// TestPolicyParameters checks that users cannot use parameters that they may not read, because the
// server reads parameters with all rights, and policies can return their content.
func TestPolicyParameters(t *testing.T) {
	t.Parallel()
	in := clusters(t, sharedCluster.Get(t), "params")[0]
	author := in.clientFor(t, "author", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}},
		rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"own"}})
	policyOf := func(name, version, kind string) *admissionregistrationv1.ValidatingAdmissionPolicy {
		return &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: matchResources(), ParamKind: &admissionregistrationv1.ParamKind{APIVersion: version, Kind: kind},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", MessageExpression: "string(params)"}},
		}}
	}
	create := func(by kubernetes.Interface, name, version, kind string) error {
		_, err := by.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policyOf(name, version, kind), metav1.CreateOptions{})
		return err
	}
	bind := func(by kubernetes.Interface, policy string, ref admissionregistrationv1.ParamRef) error {
		ref.ParameterNotFoundAction = new(admissionregistrationv1.AllowAction)
		_, err := by.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: policy + "-"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: policy, ParamRef: &ref, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit},
			},
		}, metav1.CreateOptions{})
		return err
	}
	forbidden := func(err error, why string) {
		t.Helper()
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, why)
	}
	eventually(t, "the rights of the author", func() bool { return create(author, "maps", "v1", "ConfigMap") == nil })

	forbidden(create(author, "secrets", "v1", "Secret"), "you must be allowed to get all of secrets in all namespaces")
	forbidden(create(author, "unknown", "example.com/v1", "Nonsense"), "the kind of the parameters is unknown")
	require.NoError(t, create(in, "secrets", "v1", "Secret"), "an administrator was rejected")

	require.NoError(t, bind(author, "maps", admissionregistrationv1.ParamRef{Name: "any", Namespace: "default"}))
	forbidden(bind(author, "maps", admissionregistrationv1.ParamRef{Selector: &metav1.LabelSelector{}}), "list all of configmaps in all namespaces")
	require.NoError(t, bind(author, "secrets", admissionregistrationv1.ParamRef{Name: "own", Namespace: "default"}))
	forbidden(bind(author, "secrets", admissionregistrationv1.ParamRef{Name: "others", Namespace: "default"}), `get "others" of secrets in namespace "default"`)
	forbidden(bind(author, "secrets", admissionregistrationv1.ParamRef{Selector: &metav1.LabelSelector{}, Namespace: "default"}), `list all of secrets in namespace "default"`)
	forbidden(bind(author, "later", admissionregistrationv1.ParamRef{Name: "own", Namespace: "default"}), "the kind of the parameters is unknown")

	update := func(name string, change func(*admissionregistrationv1.ValidatingAdmissionPolicy)) error {
		policies := author.AdmissionregistrationV1().ValidatingAdmissionPolicies()
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			policy := harness.Get(t, policies, name)
			change(policy)
			_, err := policies.Update(t.Context(), policy, metav1.UpdateOptions{})
			return err
		})
	}
	require.NoError(t, update("secrets", func(p *admissionregistrationv1.ValidatingAdmissionPolicy) { p.Labels = map[string]string{"a": "b"} }))
	forbidden(update("maps", func(p *admissionregistrationv1.ValidatingAdmissionPolicy) { p.Spec.ParamKind.Kind = "Secret" }), "get all of secrets")

	_, err := author.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "mutating"},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: matchResources(), ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "Secret"},
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: `Object{metadata: Object.metadata{labels: {"x": string(params.data.x)}}}`},
			}},
		},
	}, metav1.CreateOptions{})
	forbidden(err, "get all of secrets")
}
