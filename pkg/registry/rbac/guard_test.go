package rbac

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// world contains the rules of users, in namespace ns and everywhere.
type world struct {
	own   []rbacv1.PolicyRule
	roles map[string][]rbacv1.PolicyRule
	// verbs are "verb resource/name" that the writer has.
	verbs map[string]bool
}

func (w world) RulesOf(context.Context, user.Info, string) ([]rbacv1.PolicyRule, error) {
	return w.own, nil
}

func (w world) RulesIn(_ context.Context, ref rbacv1.RoleRef, _ string) ([]rbacv1.PolicyRule, error) {
	rules, ok := w.roles[ref.Name]
	if !ok {
		return nil, apierrors.NewNotFound(rbacv1.Resource("role"), ref.Name)
	}
	return rules, nil
}

func (w world) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if w.verbs[a.GetVerb()+" "+a.GetResource()+"/"+a.GetName()] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func TestGuard(t *testing.T) {
	get := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}
	write := rbacv1.PolicyRule{Verbs: []string{"create", "delete"}, APIGroups: []string{""}, Resources: []string{"pods", "secrets"}}
	w := world{
		own:   []rbacv1.PolicyRule{get},
		roles: map[string][]rbacv1.PolicyRule{"reader": {get}, "writer": {write}, "bindable": {write}},
		verbs: map[string]bool{"escalate roles/free": true, "escalate clusterroles/free": true, "bind clusterroles/bindable": true},
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, UID: "1"} }
	role := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: meta(name), Rules: rules}
	}
	clusterRole := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: meta(name), Rules: rules}
	}
	aggregated := clusterRole("x")
	aggregated.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
	collected := role("x", write)
	collected.Finalizers = []string{"a/b"}
	binding := func(ref string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: meta("b"), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: ref}}
	}
	more := binding("writer")
	more.Subjects = []rbacv1.Subject{{Kind: "User", Name: "u"}}

	g := Config{Authorizer: w, Rules: w}
	checkRole := (&guarded[*rbacv1.Role]{check: g.checkRole}).checkObject
	checkClusterRole := (&guarded[*rbacv1.ClusterRole]{check: g.checkClusterRole}).checkObject
	checkRoleBinding := (&guarded[*rbacv1.RoleBinding]{check: bindingCheck(g, "rolebindings", true, same)}).checkObject
	checkClusterRoleBinding := (&guarded[*rbacv1.ClusterRoleBinding]{check: bindingCheck(g, "clusterrolebindings", false, asRoleBinding)}).checkObject
	for _, tc := range []struct {
		name     string
		check    func(ctx context.Context, obj, old runtime.Object) error
		obj, old runtime.Object
		want     string // part of the error; empty for none
	}{
		{name: "own rules", check: checkRole, obj: role("x", get)},
		{name: "no rules", check: checkRole, obj: role("x")},
		{name: "more rules", check: checkRole, obj: role("x", get, write), want: "currently held:\n" + `{APIGroups:[""], Resources:["pods"], Verbs:["create", "delete"]}` + "\n" + `{APIGroups:[""], Resources:["secrets"], Verbs:["create", "delete"]}`},
		{name: "escalate", check: checkRole, obj: role("free", write)},
		{name: "unchanged rules", check: checkRole, obj: role("x", write), old: role("y", write)},
		{name: "fewer rules", check: checkRole, obj: role("x", get), old: role("x", write)},
		{name: "changed rules", check: checkRole, obj: role("x", write), old: role("x", get), want: "not currently held"},
		{name: "garbage collection", check: checkRole, obj: collected, old: role("x", write)},
		{name: "update that creates", check: checkRole, obj: role("x", write), old: &rbacv1.Role{}, want: "not currently held"},
		{name: "cluster role", check: checkClusterRole, obj: clusterRole("x", write), want: "not currently held"},
		{name: "cluster role with more rules", check: checkClusterRole, obj: clusterRole("x", get, write), want: "not currently held"},
		{name: "escalate a cluster role", check: checkClusterRole, obj: clusterRole("free", write)},
		{name: "aggregated", check: checkClusterRole, obj: aggregated, want: "must have cluster-admin privileges to use the aggregationRule"},
		{name: "no longer aggregated", check: checkClusterRole, obj: clusterRole("x"), old: aggregated, want: "must have cluster-admin privileges"},
		{name: "unchanged aggregation", check: checkClusterRole, obj: aggregated, old: aggregated},
		{name: "bind own rules", check: checkRoleBinding, obj: binding("reader")},
		{name: "bind more", check: checkRoleBinding, obj: binding("writer"), want: "not currently held"},
		{name: "more subjects", check: checkRoleBinding, obj: more, old: binding("writer"), want: "not currently held"},
		{name: "bind", check: checkRoleBinding, obj: binding("bindable")},
		{name: "missing", check: checkRoleBinding, obj: binding("missing"), want: "not found"},
		{name: "bind everywhere", check: checkClusterRoleBinding, obj: &rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "writer"}}, want: "not currently held"},
		{name: "another kind", check: checkRoleBinding, obj: role("x"), want: "unexpected object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, groups := range [][]string{{"team"}, {user.SystemPrivilegedGroup}} {
				ctx := genericapirequest.WithNamespace(genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "u", Groups: groups}), "ns")
				err := tc.check(ctx, tc.obj, tc.old)
				if tc.want == "" || groups[0] == user.SystemPrivilegedGroup && tc.name != "another kind" {
					require.NoError(t, err)
					continue
				}
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
	require.ErrorContains(t, g.checkRole(t.Context(), role("x", get), nil), "no user")
	covering := world{own: everything}
	require.NoError(t, Config{Authorizer: covering, Rules: covering}.checkClusterRole(genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "u"}), aggregated, nil))
}

func TestGuardIsBounded(t *testing.T) {
	role := func(rule rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: []rbacv1.PolicyRule{rule}}
	}
	check := func(own []rbacv1.PolicyRule, rule rbacv1.PolicyRule) error {
		ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "u"})
		return Config{Authorizer: world{}, Rules: world{own: own}}.checkRole(ctx, role(rule), nil)
	}
	many := make([]string, 5000)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	huge := rbacv1.PolicyRule{Verbs: many, APIGroups: many, Resources: many, ResourceNames: many}
	require.ErrorContains(t, check(nil, huge), "too many rules to compare")
	require.NoError(t, check(everything, huge))
	require.ErrorContains(t, check(everything[:1], rbacv1.PolicyRule{Verbs: many, NonResourceURLs: many}), "too many rules to compare")
	own := []rbacv1.PolicyRule{{Verbs: many, NonResourceURLs: many[:1]}}
	require.ErrorContains(t, check(own, rbacv1.PolicyRule{Verbs: many[:2000], APIGroups: many[:1], Resources: many[:2]}), "too many rules to compare")
}
