package rbac_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/request"
)

type question struct {
	who       user.DefaultInfo
	verb      string
	group     string
	resource  string
	sub       string
	namespace string
	name      string
	path      string
	allowed   bool
}

// documented are the examples and statements of Kubernetes' documentation of RBAC in their order. allowsTable
// contains those about single rules.
func documented() []struct {
	name  string
	feed  func(f rbac.Feed)
	about []question
} {
	person := func(name string, groups ...string) user.DefaultInfo {
		return user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
	}
	account := func(namespace, name string) user.DefaultInfo {
		return person("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	role := func(f rbac.Feed, namespace, name string, rules ...rbacv1.PolicyRule) {
		f.SetRole(&rbacv1.Role{ObjectMeta: meta("a", namespace, name), Rules: rules})
	}
	clusterRole := func(f rbac.Feed, name string, rules ...rbacv1.PolicyRule) {
		f.SetClusterRole(&rbacv1.ClusterRole{ObjectMeta: meta("a", "", name), Rules: rules})
	}
	bind := func(f rbac.Feed, namespace, kind, name string, subjects ...rbacv1.Subject) {
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
		if namespace == "" {
			f.SetClusterRoleBinding(&rbacv1.ClusterRoleBinding{ObjectMeta: meta("a", "", "bind-"+name), RoleRef: ref, Subjects: subjects})
			return
		}
		f.SetRoleBinding(&rbacv1.RoleBinding{ObjectMeta: meta("a", namespace, "bind-"+name), RoleRef: ref, Subjects: subjects})
	}
	urls := rbacv1.PolicyRule{Verbs: list("get", "post"), NonResourceURLs: list("/healthz", "/healthz/*", "/a/*/b")}
	return []struct {
		name  string
		feed  func(f rbac.Feed)
		about []question
	}{
		{
			name: "a RoleBinding grants a Role in its namespace", feed: func(f rbac.Feed) {
				role(f, "default", "pod-reader", rule(list("get", "watch", "list"), list(""), list("pods")))
				bind(f, "default", "Role", "pod-reader", subject("User", "", "jane"))
			},
			about: []question{
				{who: person("jane"), verb: "list", resource: "pods", namespace: "default", allowed: true},
				{who: person("jane"), verb: "list", resource: "pods", namespace: "other"},
				{who: person("jane"), verb: "list", resource: "pods"},
				{who: person("jane"), verb: "delete", resource: "pods", namespace: "default"},
				{who: person("jane"), verb: "list", group: "metrics.k8s.io", resource: "pods", namespace: "default"},
				{who: person("Jane"), verb: "list", resource: "pods", namespace: "default"},
			},
		},
		{
			name: "a RoleBinding grants a ClusterRole in its namespace only", feed: func(f rbac.Feed) {
				clusterRole(f, "secret-reader", rule(list("get", "watch", "list"), list(""), list("secrets", "nodes")), urls)
				bind(f, "development", "ClusterRole", "secret-reader", subject("User", "", "dave"))
			},
			about: []question{
				{who: person("dave"), verb: "get", resource: "secrets", namespace: "development", allowed: true},
				{who: person("dave"), verb: "get", resource: "secrets", namespace: "production"},
				{who: person("dave"), verb: "get", resource: "nodes"},
				{who: person("dave"), verb: "get", path: "/healthz"},
			},
		},
		{
			name: "a ClusterRoleBinding grants it everywhere", feed: func(f rbac.Feed) {
				clusterRole(f, "secret-reader", rule(list("get", "watch", "list"), list(""), list("secrets", "nodes")), urls)
				bind(f, "", "ClusterRole", "secret-reader", subject("Group", "", "manager"))
			},
			about: []question{
				{who: person("x", "manager"), verb: "get", resource: "secrets", namespace: "any", allowed: true},
				{who: person("x", "manager"), verb: "list", resource: "secrets", allowed: true},
				{who: person("x", "manager"), verb: "get", resource: "nodes", name: "n", allowed: true},
				{who: person("manager"), verb: "get", resource: "secrets", namespace: "any"},
				{who: person("x", "manager"), verb: "get", path: "/healthz", allowed: true},
				{who: person("x", "manager"), verb: "post", path: "/healthz/etcd/x", allowed: true},
				{who: person("x", "manager"), verb: "put", path: "/healthz"},
				{who: person("x", "manager"), verb: "get", path: "/a/x/b"},
				{who: person("x", "manager"), verb: "get", path: "/a/*/b", allowed: true},
			},
		},
		{
			name: "permissions are additive, and verbs may be of one's own", feed: func(f rbac.Feed) {
				role(f, "default", "one", rule(list("get"), list(""), list("pods")))
				role(f, "default", "two", rule(list("*"), list("example.com"), list("*")))
				bind(f, "default", "Role", "one", subject("User", "", "jane"))
				bind(f, "default", "Role", "two", subject("User", "", "jane"))
				bind(f, "default", "Role", "three", subject("User", "", "jane"))
			},
			about: []question{
				{who: person("jane"), verb: "get", resource: "pods", namespace: "default", allowed: true},
				{who: person("jane"), verb: "use", group: "example.com", resource: "things", sub: "part", namespace: "default", allowed: true},
				{who: person("jane"), verb: "use", resource: "pods", namespace: "default"},
			},
		},
		{
			name: "groups of service accounts", feed: func(f rbac.Feed) {
				clusterRole(f, "view", rule(list("get"), list(""), list("pods")))
				clusterRole(f, "all-accounts", rule(list("get"), list(""), list("configmaps")))
				clusterRole(f, "everybody", rule(list("get"), list(""), list("services")))
				bind(f, "qa", "ClusterRole", "view", subject("Group", "", "system:serviceaccounts:qa"))
				bind(f, "", "ClusterRole", "all-accounts", subject("Group", "", "system:serviceaccounts"))
				bind(f, "", "ClusterRole", "everybody", subject("Group", "", user.AllAuthenticated), subject("Group", "", user.AllUnauthenticated))
			},
			about: []question{
				{who: account("qa", "x"), verb: "get", resource: "pods", namespace: "qa", allowed: true},
				{who: account("prod", "x"), verb: "get", resource: "pods", namespace: "qa"},
				{who: account("prod", "x"), verb: "get", resource: "configmaps", namespace: "qa", allowed: true},
				{who: person("jane"), verb: "get", resource: "configmaps", namespace: "qa"},
				{who: person("jane"), verb: "get", resource: "services", namespace: "qa", allowed: true},
				{who: user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, verb: "get", resource: "services", namespace: "qa", allowed: true},
			},
		},
		{
			name: "a service account is one of its namespace", feed: func(f rbac.Feed) {
				clusterRole(f, "view", rule(list("get"), list(""), list("pods")))
				bind(f, "my-namespace", "ClusterRole", "view", subject("ServiceAccount", "kube-system", "default"))
			},
			about: []question{
				{who: account("kube-system", "default"), verb: "get", resource: "pods", namespace: "my-namespace", allowed: true},
				{who: account("my-namespace", "default"), verb: "get", resource: "pods", namespace: "my-namespace"},
				{who: account("kube-system", "default"), verb: "get", resource: "pods", namespace: "kube-system"},
			},
		},
	}
}

func TestDocumented(t *testing.T) {
	for _, tc := range documented() {
		t.Run(tc.name, func(t *testing.T) {
			f := rbac.NewFeed()
			tc.feed(f)
			z := f.Authorizer(system)
			for _, q := range tc.about {
				decision, reason, err := z.Authorize(request.WithClusterName(t.Context(), "a"), authorizer.AttributesRecord{
					User: &q.who, Verb: q.verb, APIGroup: q.group, Resource: q.resource, Subresource: q.sub,
					Namespace: q.namespace, Name: q.name, Path: q.path, ResourceRequest: q.path == "",
				})
				require.NoError(t, err)
				require.Equal(t, q.allowed, decision == authorizer.DecisionAllow, "%+v: %s", q, reason)
				decision, _, err = z.Authorize(request.WithClusterName(t.Context(), "b"), authorizer.AttributesRecord{
					User: &q.who, Verb: q.verb, APIGroup: q.group, Resource: q.resource, Subresource: q.sub,
					Namespace: q.namespace, Name: q.name, Path: q.path, ResourceRequest: q.path == "",
				})
				require.NoError(t, err)
				require.Equal(t, authorizer.DecisionNoOpinion, decision, "in another logical cluster: %+v", q)
			}
		})
	}
}
