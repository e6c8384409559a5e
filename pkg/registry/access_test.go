package registry_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacv1apply "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"
)

func TestRoles(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		pods := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}
		paths := rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/x"}}
		both := pods
		both.NonResourceURLs = paths.NonResourceURLs
		for name, test := range map[string]struct {
			rule rbacv1.PolicyRule
			// role and clusterRole are the expected errors.
			role, clusterRole string
		}{
			"ok":      {rule: pods},
			"paths":   {rule: paths, role: `rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs`},
			"both":    {rule: both, role: `[rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs, rules[0].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply to both regular resources and non-resource URLs]`, clusterRole: `rules[0].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply to both regular resources and non-resource URLs`},
			"nothing": {rule: rbacv1.PolicyRule{}, role: `[rules[0].verbs: Required value: verbs must contain at least one value, rules[0].apiGroups: Required value: resource rules must supply at least one api group, rules[0].resources: Required value: resource rules must supply at least one resource]`, clusterRole: `[rules[0].verbs: Required value: verbs must contain at least one value, rules[0].apiGroups: Required value: resource rules must supply at least one api group, rules[0].resources: Required value: resource rules must supply at least one resource]`},
		} {
			t.Run(name, func(t *testing.T) {
				_, err := client.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: named("system:x"), Rules: []rbacv1.PolicyRule{test.rule}}, dryRun)
				requireInvalid(t, err, `Role.rbac.authorization.k8s.io "system:x" is invalid: `, test.role)
				_, err = client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named("system:x"), Rules: []rbacv1.PolicyRule{test.rule}}, dryRun)
				requireInvalid(t, err, `ClusterRole.rbac.authorization.k8s.io "system:x" is invalid: `, test.clusterRole)
			})
		}
		_, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named("a"), AggregationRule: &rbacv1.AggregationRule{}}, metav1.CreateOptions{})
		requireInvalid(t, err, `ClusterRole.rbac.authorization.k8s.io "a" is invalid: `, "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil")
		_, err = client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named("a/b")}, metav1.CreateOptions{})
		requireInvalid(t, err, `ClusterRole.rbac.authorization.k8s.io "a/b" is invalid: `, `metadata.name: Invalid value: "a/b": may not contain '/'`)
	})
}

func TestBindings(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		user := rbacv1.Subject{Kind: "User", Name: "u"}
		role := rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"}
		for name, test := range map[string]struct {
			ref     rbacv1.RoleRef
			subject rbacv1.Subject
			want    string
		}{
			"ok":                             {ref: role, subject: user},
			"group of the role":              {ref: rbacv1.RoleRef{APIGroup: "x", Kind: "ClusterRole", Name: "r"}, subject: user, want: `roleRef.apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io"`},
			"kind of the role":               {ref: rbacv1.RoleRef{Kind: "Role", Name: "r"}, subject: user, want: `roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"`},
			"no role":                        {ref: rbacv1.RoleRef{Kind: "ClusterRole"}, subject: user, want: "roleRef.name: Required value"},
			"role with a slash":              {ref: rbacv1.RoleRef{Kind: "ClusterRole", Name: "a/b"}, subject: user, want: `roleRef.name: Invalid value: "a/b": may not contain '/'`},
			"kind of the subject":            {ref: role, subject: rbacv1.Subject{Kind: "Foo", Name: "u"}, want: `subjects[0].kind: Unsupported value: "Foo": supported values: "ServiceAccount", "User", "Group"`},
			"no user":                        {ref: role, subject: rbacv1.Subject{Kind: "User"}, want: `[subjects[0].name: Required value, subjects[0].name: Invalid value: "": user name cannot be empty]`},
			"group of the user":              {ref: role, subject: rbacv1.Subject{Kind: "User", Name: "u", APIGroup: "x"}, want: `subjects[0].apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io"`},
			"service account of nowhere":     {ref: role, subject: rbacv1.Subject{Kind: "ServiceAccount", Name: "s"}, want: "subjects[0].namespace: Required value"},
			"group of the service account":   {ref: role, subject: rbacv1.Subject{Kind: "ServiceAccount", Name: "s", Namespace: "n", APIGroup: "x"}, want: `subjects[0].apiGroup: Unsupported value: "x": supported values: ""`},
			"service account of a namespace": {ref: role, subject: rbacv1.Subject{Kind: "ServiceAccount", Name: "s", Namespace: "n"}},
		} {
			t.Run(name, func(t *testing.T) {
				binding := &rbacv1.ClusterRoleBinding{ObjectMeta: named("b"), RoleRef: test.ref, Subjects: []rbacv1.Subject{test.subject}}
				_, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, dryRun)
				requireInvalid(t, err, `ClusterRoleBinding.rbac.authorization.k8s.io "b" is invalid: `, test.want)
			})
		}
		binding := &rbacv1.RoleBinding{ObjectMeta: named("b"), RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"}, Subjects: []rbacv1.Subject{user, {Kind: "ServiceAccount", Name: "s"}}}
		created := mustCreate(t, client.RbacV1().RoleBindings(namespace), binding)
		require.Equal(t, rbacv1.GroupName, created.RoleRef.APIGroup, "groups must be defaulted")
		require.Equal(t, rbacv1.GroupName, created.Subjects[0].APIGroup)
		require.Empty(t, created.Subjects[1].APIGroup)
		created.RoleRef.Name = "other"
		_, err := client.RbacV1().RoleBindings(namespace).Update(t.Context(), created, metav1.UpdateOptions{})
		requireInvalid(t, err, `RoleBinding.rbac.authorization.k8s.io "b" is invalid: `, `roleRef: Invalid value: {"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"other"}: cannot change roleRef`)

		apply := rbacv1apply.ClusterRoleBinding("applied-" + namespace).
			WithRoleRef(rbacv1apply.RoleRef().WithKind("ClusterRole").WithName("r").WithAPIGroup(rbacv1.GroupName)).
			WithSubjects(rbacv1apply.Subject().WithKind("User").WithName("u").WithAPIGroup(rbacv1.GroupName))
		for range 2 {
			applied, err := client.RbacV1().ClusterRoleBindings().Apply(t.Context(), apply, metav1.ApplyOptions{FieldManager: "test"})
			require.NoError(t, err)
			require.Len(t, applied.Subjects, 1)
		}
	})
}

func TestReviews(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		resource := &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "pods"}
		path := &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/"}
		selector := &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods", FieldSelector: &authorizationv1.FieldSelectorAttributes{RawSelector: "a=b", Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"b"}}}}}
		for name, test := range map[string]struct {
			spec    authorizationv1.SubjectAccessReviewSpec
			allowed bool
			want    string
		}{
			"allowed":   {spec: authorizationv1.SubjectAccessReviewSpec{Groups: []string{"system:masters"}, ResourceAttributes: resource}, allowed: true},
			"denied":    {spec: authorizationv1.SubjectAccessReviewSpec{User: "u", NonResourceAttributes: path}},
			"both":      {spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: resource, NonResourceAttributes: path}, want: `spec.nonResourceAttributes: Invalid value: {"path":"/","verb":"get"}: cannot be specified in combination with resourceAttributes`},
			"neither":   {spec: authorizationv1.SubjectAccessReviewSpec{User: "u"}, want: `spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified`},
			"no user":   {spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: resource}, want: `spec.user: Invalid value: "": at least one of user or group must be specified`},
			"large":     {spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: &authorizationv1.ResourceAttributes{LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: strings.Repeat("a,", 8193)}}}, want: "spec.resourceAttributes.labelSelector.rawSelector: Too long: may not be more than 16384 bytes"},
			"selectors": {spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: selector}, want: `spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: "a=b": may not specified at the same time as requirements`},
		} {
			t.Run(name, func(t *testing.T) {
				response, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: test.spec}, metav1.CreateOptions{})
				requireInvalid(t, err, `SubjectAccessReview.authorization.k8s.io "" is invalid: `, test.want)
				if test.want == "" {
					require.Equal(t, test.allowed, response.Status.Allowed)
				}
			})
		}
		_, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			ObjectMeta: named("x"), Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: resource},
		}, metav1.CreateOptions{})
		require.ErrorContains(t, err, "must be empty")
		_, err = client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: "x", Audiences: make([]string, 101)},
		}, metav1.CreateOptions{})
		require.ErrorContains(t, err, "at most 100 allowed")

		self, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: resource},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.True(t, self.Status.Allowed)

		local := &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: resource},
		}
		response := mustCreate(t, client.AuthorizationV1().LocalSubjectAccessReviews(namespace), local)
		require.False(t, response.Status.Allowed)
		local.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: "other", Verb: "get", Resource: "pods"}
		_, err = client.AuthorizationV1().LocalSubjectAccessReviews(namespace).Create(t.Context(), local, metav1.CreateOptions{})
		requireInvalid(t, err, `LocalSubjectAccessReview.authorization.k8s.io "" is invalid: `, `spec.resourceAttributes.namespace: Invalid value: "other": must match metadata.namespace`)

		_, err = client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{}, metav1.CreateOptions{})
		requireRefusal(t, err, metav1.StatusReasonBadRequest, "no namespace on request")
	})
}
