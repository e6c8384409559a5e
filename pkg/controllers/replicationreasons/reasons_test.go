package replicationreasons

import (
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRules(t *testing.T) {
	const apis, tenancy = "apis.kcp.io|c|r", "tenancy.kcp.io|c|r"
	for name, test := range map[string]struct {
		verbs, groups, resources []string
		want                     []string
	}{
		"bind":                     {[]string{"bind"}, []string{"apis.kcp.io"}, []string{"apiexports"}, []string{apis}},
		"bind and other verbs":     {[]string{"get", "bind"}, []string{"x", "apis.kcp.io"}, []string{"a", "apiexports"}, []string{apis}},
		"get exports":              {[]string{"get"}, []string{"apis.kcp.io"}, []string{"apiexports"}, nil},
		"bind in another group":    {[]string{"bind"}, []string{"rbac.authorization.k8s.io"}, []string{"apiexports"}, nil},
		"content, any verb":        {[]string{"get"}, []string{"apis.kcp.io"}, []string{"apiexports/content"}, []string{apis}},
		"content of all resources": {[]string{"list"}, []string{"apis.kcp.io"}, []string{"*/content"}, []string{apis}},
		"content without a verb":   {nil, []string{"apis.kcp.io"}, []string{"apiexports/content"}, nil},
		"any verb on exports":      {[]string{"*"}, []string{"apis.kcp.io"}, []string{"apiexports"}, []string{apis}},
		"get anything":             {[]string{"get"}, []string{"*"}, []string{"*"}, []string{apis}},
		"all":                      {[]string{"*"}, []string{"*"}, []string{"*"}, []string{apis, tenancy}},
		"use":                      {[]string{"use"}, []string{"tenancy.kcp.io"}, []string{"workspacetypes"}, []string{tenancy}},
		"initialize and terminate": {[]string{"terminate"}, []string{"tenancy.kcp.io"}, []string{"workspacetypes"}, []string{tenancy}},
		"use of the status":        {[]string{"use"}, []string{"tenancy.kcp.io"}, []string{"workspacetypes/status"}, nil},
		"unrelated rule":           {[]string{"get"}, []string{""}, []string{"configmaps"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			role := &rbacv1.ClusterRole{
				ObjectMeta: metav1.ObjectMeta{Name: "r", Annotations: map[string]string{"kcp.io/cluster": "c"}},
				Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/"}}, {Verbs: test.verbs, APIGroups: test.groups, Resources: test.resources}},
			}
			require.Equal(t, test.want, IndexByRule(role))
		})
	}
}

func TestAccessRules(t *testing.T) {
	for name, test := range map[string]struct {
		verbs, urls []string
		want        []string
	}{
		"access":                 {[]string{"access"}, []string{"/"}, []string{"core.kcp.io|c|r"}},
		"any verb, any URL":      {[]string{"*"}, []string{"*"}, []string{"core.kcp.io|c|r"}},
		"any path":               {[]string{"access"}, []string{"/*"}, []string{"core.kcp.io|c|r"}},
		"access and other verbs": {[]string{"get", "access"}, []string{"/healthz", "/"}, []string{"core.kcp.io|c|r"}},
		"get":                    {[]string{"get"}, []string{"/"}, nil},
		"access to other URLs":   {[]string{"access"}, []string{"/api", "/apis/*"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			role := &rbacv1.ClusterRole{
				ObjectMeta: metav1.ObjectMeta{Name: "r", Annotations: map[string]string{"kcp.io/cluster": "c"}},
				Rules:      []rbacv1.PolicyRule{{Verbs: test.verbs, NonResourceURLs: test.urls}},
			}
			require.Equal(t, test.want, IndexByRule(role))
		})
	}
}

func TestSubjects(t *testing.T) {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Annotations: map[string]string{"kcp.io/cluster": "c"}},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: "alice"}, {Kind: "ServiceAccount", Name: "apis.kcp.io:binding:x"}},
	}
	require.Equal(t, []string{"c|r", "|r"}, IndexByRole(binding))
	require.Empty(t, IndexBySubject(binding))
	binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: "Group", Name: "apis.kcp.io:binding:system:authenticated"})
	require.Equal(t, []string{"apis.kcp.io|c|r"}, IndexBySubject(binding))
}

func TestAnnotated(t *testing.T) {
	for _, test := range []struct{ before, hasReason, want string }{
		{"", "", ""},
		{"", "apis.kcp.io", "apis.kcp.io"},
		{"apis.kcp.io", "apis.kcp.io", "apis.kcp.io"},
		{"apis.kcp.io", "tenancy.kcp.io", "tenancy.kcp.io"},
		{"apis.kcp.io", "", ""},
		{"true", "apis.kcp.io", "true,apis.kcp.io"},
		{"tenancy.kcp.io,true,apis.kcp.io", "", "true"},
		{"a,,b", "", "a,,b"},
	} {
		require.Equal(t, test.want, annotated(test.before, func(why string) bool { return why == test.hasReason }), "%+v", test)
	}
}
