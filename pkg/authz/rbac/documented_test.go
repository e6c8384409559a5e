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
	user                                              user.DefaultInfo
	verb, group, resource, sub, namespace, name, path string
	allowed                                           bool
}

type documentedCase struct {
	name  string
	feed  func(f rbac.Feed)
	about []question
}

// documented are the examples and statements of Kubernetes' documentation of RBAC in their order. allowsTable
// contains those about single rules.
func documented() []documentedCase {
	person := func(name string, groups ...string) user.DefaultInfo {
		return user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
	}
	account := func(namespace, name string) user.DefaultInfo {
		return person("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	urls := rbacv1.PolicyRule{Verbs: list("get", "post"), NonResourceURLs: list("/healthz", "/healthz/*", "/a/*/b")}
	return []documentedCase{
		{name: "RoleBinding of a Role", feed: func(f rbac.Feed) {
			f.SetRules("a", "default", "pod-reader", rule(list("get", "watch", "list"), list(""), list("pods")))
			f.Bind("a", "default", "bind-pod-reader", rbac.Role("pod-reader"), rbac.User("jane"))
		}, about: []question{
			{user: person("jane"), verb: "list", resource: "pods", namespace: "default", allowed: true},
			{user: person("jane"), verb: "list", resource: "pods", namespace: "other"},
			{user: person("jane"), verb: "list", resource: "pods"},
			{user: person("jane"), verb: "delete", resource: "pods", namespace: "default"},
			{user: person("jane"), verb: "list", group: "metrics.k8s.io", resource: "pods", namespace: "default"},
			{user: person("Jane"), verb: "list", resource: "pods", namespace: "default"},
		}},
		{name: "RoleBinding of a ClusterRole", feed: func(f rbac.Feed) {
			f.SetRules("a", "", "secret-reader", rule(list("get", "watch", "list"), list(""), list("secrets", "nodes")), urls)
			f.Bind("a", "development", "bind-secret-reader", rbac.ClusterRole("secret-reader"), rbac.User("dave"))
		}, about: []question{
			{user: person("dave"), verb: "get", resource: "secrets", namespace: "development", allowed: true},
			{user: person("dave"), verb: "get", resource: "secrets", namespace: "production"},
			{user: person("dave"), verb: "get", resource: "nodes"},
			{user: person("dave"), verb: "get", path: "/healthz"},
		}},
		{name: "ClusterRoleBinding", feed: func(f rbac.Feed) {
			f.SetRules("a", "", "secret-reader", rule(list("get", "watch", "list"), list(""), list("secrets", "nodes")), urls)
			f.Bind("a", "", "bind-secret-reader", rbac.ClusterRole("secret-reader"), subject("Group", "", "manager"))
		}, about: []question{
			{user: person("x", "manager"), verb: "get", resource: "secrets", namespace: "any", allowed: true},
			{user: person("x", "manager"), verb: "list", resource: "secrets", allowed: true},
			{user: person("x", "manager"), verb: "get", resource: "nodes", name: "n", allowed: true},
			{user: person("manager"), verb: "get", resource: "secrets", namespace: "any"},
			{user: person("x", "manager"), verb: "get", path: "/healthz", allowed: true},
			{user: person("x", "manager"), verb: "post", path: "/healthz/etcd/x", allowed: true},
			{user: person("x", "manager"), verb: "put", path: "/healthz"},
			{user: person("x", "manager"), verb: "get", path: "/a/x/b"},
			{user: person("x", "manager"), verb: "get", path: "/a/*/b", allowed: true},
		}},
		{name: "additive permissions and custom verbs", feed: func(f rbac.Feed) {
			f.SetRules("a", "default", "one", rule(list("get"), list(""), list("pods")))
			f.SetRules("a", "default", "two", rule(list("*"), list("example.com"), list("*")))
			f.Bind("a", "default", "bind-one", rbac.Role("one"), rbac.User("jane"))
			f.Bind("a", "default", "bind-two", rbac.Role("two"), rbac.User("jane"))
			f.Bind("a", "default", "bind-three", rbac.Role("three"), rbac.User("jane"))
		}, about: []question{
			{user: person("jane"), verb: "get", resource: "pods", namespace: "default", allowed: true},
			{user: person("jane"), verb: "use", group: "example.com", resource: "things", sub: "part", namespace: "default", allowed: true},
			{user: person("jane"), verb: "use", resource: "pods", namespace: "default"},
		}},
		{name: "groups of service accounts", feed: func(f rbac.Feed) {
			f.SetRules("a", "", "view", rule(list("get"), list(""), list("pods")))
			f.SetRules("a", "", "all-accounts", rule(list("get"), list(""), list("configmaps")))
			f.SetRules("a", "", "all-users", rule(list("get"), list(""), list("services")))
			f.Bind("a", "qa", "bind-view", rbac.ClusterRole("view"), subject("Group", "", "system:serviceaccounts:qa"))
			f.Bind("a", "", "bind-all-accounts", rbac.ClusterRole("all-accounts"),
				subject("Group", "", "system:serviceaccounts"))
			f.Bind("a", "", "bind-all-users", rbac.ClusterRole("all-users"),
				subject("Group", "", user.AllAuthenticated), subject("Group", "", user.AllUnauthenticated))
		}, about: []question{
			{user: account("qa", "x"), verb: "get", resource: "pods", namespace: "qa", allowed: true},
			{user: account("prod", "x"), verb: "get", resource: "pods", namespace: "qa"},
			{user: account("prod", "x"), verb: "get", resource: "configmaps", namespace: "qa", allowed: true},
			{user: person("jane"), verb: "get", resource: "configmaps", namespace: "qa"},
			{user: person("jane"), verb: "get", resource: "services", namespace: "qa", allowed: true},
			{user: user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, verb: "get", resource: "services", namespace: "qa", allowed: true},
		}},
		{name: "namespace of a service account", feed: func(f rbac.Feed) {
			f.SetRules("a", "", "view", rule(list("get"), list(""), list("pods")))
			f.Bind("a", "my-namespace", "bind-view", rbac.ClusterRole("view"),
				subject("ServiceAccount", "kube-system", "default"))
		}, about: []question{
			{user: account("kube-system", "default"), verb: "get", resource: "pods", namespace: "my-namespace", allowed: true},
			{user: account("my-namespace", "default"), verb: "get", resource: "pods", namespace: "my-namespace"},
			{user: account("kube-system", "default"), verb: "get", resource: "pods", namespace: "kube-system"},
		}},
	}
}

func TestDocumented(t *testing.T) {
	for _, tc := range documented() {
		t.Run(tc.name, func(t *testing.T) {
			f := rbac.NewFeed()
			tc.feed(f)
			z := f.Authorizer(system)
			for _, q := range tc.about {
				attributes := authorizer.AttributesRecord{
					User: &q.user, Verb: q.verb, APIGroup: q.group, Resource: q.resource, Subresource: q.sub,
					Namespace: q.namespace, Name: q.name, Path: q.path, ResourceRequest: q.path == "",
				}
				decision, reason, err := z.Authorize(request.WithClusterName(t.Context(), "a"), attributes)
				require.NoError(t, err)
				require.Equal(t, q.allowed, decision == authorizer.DecisionAllow, "%+v: %s", q, reason)
				decision, _, err = z.Authorize(request.WithClusterName(t.Context(), "b"), attributes)
				require.NoError(t, err)
				require.Equal(t, authorizer.DecisionNoOpinion, decision, "in another logical cluster: %+v", q)
			}
		})
	}
}
