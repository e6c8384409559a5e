package rbac_test

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/request"
)

const system = logicalcluster.Name("system:admin")

func rule(verbs, groups, resources []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: groups, Resources: resources, ResourceNames: names}
}

func list(values ...string) []string { return values }

func subject(kind, namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: kind, Namespace: namespace, Name: name}
}

type allowsCase struct {
	name    string
	rule    rbacv1.PolicyRule
	yes, no []authorizer.AttributesRecord
}

// allowsTable is taken from the documentation of Kubernetes.
func allowsTable() []allowsCase {
	resource := func(verb, group, resource, subresource, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, APIGroup: group, Resource: resource, Subresource: subresource, Name: name, ResourceRequest: true}
	}
	path := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	urls := func(verbs []string, urls ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, NonResourceURLs: urls}
	}
	return []allowsCase{
		{name: "verbs", rule: rule(list("get", "list"), list(""), list("pods")),
			yes: []authorizer.AttributesRecord{resource("get", "", "pods", "", ""), resource("list", "", "pods", "", "")},
			no:  []authorizer.AttributesRecord{resource("watch", "", "pods", "", ""), resource("GET", "", "pods", "", "")}},
		{name: "all verbs, also custom verbs", rule: rule(list("*"), list(""), list("pods")),
			yes: []authorizer.AttributesRecord{resource("impersonate", "", "pods", "", "")}},
		{name: "API groups", rule: rule(list("get"), list("apps", "batch"), list("jobs")),
			yes: []authorizer.AttributesRecord{resource("get", "batch", "jobs", "", "")},
			no:  []authorizer.AttributesRecord{resource("get", "", "jobs", "", "")}},
		{name: "all API groups", rule: rule(list("get"), list("*"), list("jobs")),
			yes: []authorizer.AttributesRecord{resource("get", "", "jobs", "", ""), resource("get", "x.io", "jobs", "", "")}},
		{name: "no API group", rule: rule(list("get"), nil, list("jobs")),
			no: []authorizer.AttributesRecord{resource("get", "", "jobs", "", "")}},
		{name: "resource without subresources", rule: rule(list("get"), list(""), list("pods")),
			no: []authorizer.AttributesRecord{resource("get", "", "pods", "log", "")}},
		{name: "subresource without its resource", rule: rule(list("get"), list(""), list("pods/log")),
			yes: []authorizer.AttributesRecord{resource("get", "", "pods", "log", "a")},
			no:  []authorizer.AttributesRecord{resource("get", "", "pods", "", "a"), resource("get", "", "pods", "exec", "a")}},
		{name: "subresource of all resources", rule: rule(list("get"), list(""), list("*/scale")),
			yes: []authorizer.AttributesRecord{resource("get", "", "things", "scale", "a")},
			no:  []authorizer.AttributesRecord{resource("get", "", "things", "", "a"), resource("get", "", "things", "status", "a")}},
		{name: "all resources and subresources", rule: rule(list("get"), list(""), list("*")),
			yes: []authorizer.AttributesRecord{resource("get", "", "pods", "", ""), resource("get", "", "pods", "log", "")}},
		{name: "unsupported wildcard for the subresources of one resource", rule: rule(list("get"), list(""), list("pods/*")),
			no: []authorizer.AttributesRecord{resource("get", "", "pods", "log", ""), resource("get", "", "pods", "", "")}},
		{name: "names", rule: rule(list("get", "list", "create"), list(""), list("pods"), "a", "b"),
			yes: []authorizer.AttributesRecord{resource("get", "", "pods", "", "b"), resource("list", "", "pods", "", "a")},
			no:  []authorizer.AttributesRecord{resource("get", "", "pods", "", "c"), resource("list", "", "pods", "", ""), resource("create", "", "pods", "", "")}},
		{name: "paths", rule: urls(list("get"), "/healthz", "/logs/*"),
			yes: []authorizer.AttributesRecord{path("get", "/healthz"), path("get", "/logs/"), path("get", "/logs/a/b")},
			no:  []authorizer.AttributesRecord{path("get", "/healthz/x"), path("get", "/logs"), path("post", "/healthz"), path("get", "/")}},
		{name: "all paths", rule: urls(list("*"), "*"),
			yes: []authorizer.AttributesRecord{path("access", "/"), path("get", "/x")},
			no:  []authorizer.AttributesRecord{resource("get", "", "pods", "", "")}},
		{name: "resources instead of paths", rule: rule(list("*"), list("*"), list("*")),
			no: []authorizer.AttributesRecord{path("get", "/healthz")}},
		{name: "nothing", rule: rbacv1.PolicyRule{},
			no: []authorizer.AttributesRecord{path("", ""), resource("", "", "", "", "")}},
	}
}

func TestAllows(t *testing.T) {
	for _, tc := range allowsTable() {
		t.Run(tc.name, func(t *testing.T) {
			for _, a := range tc.yes {
				require.True(t, rbac.Allows(a, &tc.rule), "%+v", a)
			}
			for _, a := range tc.no {
				require.False(t, rbac.Allows(a, &tc.rule), "%+v", a)
			}
		})
	}
}

// authorizerOfMany has roles of the same names in the logical clusters a and b, and bindings in the system's.
func authorizerOfMany() *rbac.Authorizer {
	f := rbac.NewFeed()
	read := rule(list("get"), list(""), list("configmaps"))
	write := rule(list("create"), list(""), list("configmaps"))
	f.SetRules(system, "", "shared-reader", read)
	f.SetRules(system, "", "shadowed", read)
	f.Bind(system, "", "everywhere", rbac.ClusterRole("shared-reader"),
		subject("Group", "", "everywhere"), rbac.User("roamer"), subject("ServiceAccount", "ns", "bot"), rbac.User("system:serviceaccount:ns:bot2"))
	for cluster, rule := range map[logicalcluster.Name]rbacv1.PolicyRule{"a": read, "b": write} {
		f.SetRules(cluster, "ns", "same", rule)
		f.Bind(cluster, "ns", "same", rbac.Role("same"),
			rbac.User("alice"), subject("Group", "", "team"), subject("ServiceAccount", "", "bot"), subject("ServiceAccount", "other", "bot"))
	}
	f.SetRules("a", "", "shadowed", write)
	for name, role := range map[string]string{"carol": "shared-reader", "dave": "shadowed", "erin": "missing"} {
		f.Bind("a", "", name, rbac.ClusterRole(role), rbac.User(name))
	}
	return f.Authorizer(system)
}

func TestAuthorizer(t *testing.T) {
	z := authorizerOfMany()

	from := func(cluster string) map[string][]string {
		return map[string][]string{request.ExtraClusterName: {cluster}}
	}
	for _, tc := range []struct {
		name      string
		cluster   logicalcluster.Name
		user      user.DefaultInfo
		namespace string
		can       string // of get and create
		reason    string
	}{
		{name: "role in its namespace", cluster: "a", user: user.DefaultInfo{Name: "alice"}, namespace: "ns", can: "get", reason: `RBAC: allowed by RoleBinding "same/ns" of Role "same" to User "alice"`},
		{name: "role in another namespace", cluster: "a", user: user.DefaultInfo{Name: "alice"}, namespace: "ns2"},
		{name: "role in no namespace", cluster: "a", user: user.DefaultInfo{Name: "alice"}},
		{name: "role of the same name in another logical cluster", cluster: "b", user: user.DefaultInfo{Name: "alice"}, namespace: "ns", can: "create", reason: `RBAC: allowed by RoleBinding "same/ns" of Role "same" to User "alice"`},
		{name: "logical cluster without roles", cluster: "c", user: user.DefaultInfo{Name: "alice"}, namespace: "ns"},
		{name: "group", cluster: "a", user: user.DefaultInfo{Name: "x", Groups: list("y", "team")}, namespace: "ns", can: "get", reason: `RBAC: allowed by RoleBinding "same/ns" of Role "same" to Group "team"`},
		{name: "user with the name of a group", cluster: "a", user: user.DefaultInfo{Name: "team"}, namespace: "ns"},
		{name: "group with the name of a user", cluster: "a", user: user.DefaultInfo{Name: "x", Groups: list("alice")}, namespace: "ns"},
		{name: "service account of the binding's namespace", cluster: "a", user: user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Extra: from("a")}, namespace: "ns", can: "get", reason: `RBAC: allowed by RoleBinding "same/ns" of Role "same" to User "system:serviceaccount:ns:bot"`},
		{name: "service account of another namespace", cluster: "a", user: user.DefaultInfo{Name: "system:serviceaccount:other:bot"}, namespace: "ns", can: "get", reason: `RBAC: allowed by RoleBinding "same/ns" of Role "same" to User "system:serviceaccount:other:bot"`},
		{name: "unbound service account", cluster: "a", user: user.DefaultInfo{Name: "system:serviceaccount:third:bot"}, namespace: "ns"},
		{name: "service account of another logical cluster", cluster: "a", user: user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Extra: from("b")}, namespace: "ns"},
		{name: "system cluster role", cluster: "a", user: user.DefaultInfo{Name: "carol"}, namespace: "any", can: "get", reason: `RBAC: allowed by ClusterRoleBinding "carol" of ClusterRole "shared-reader" to User "carol"`},
		{name: "system cluster role, at the cluster scope", cluster: "a", user: user.DefaultInfo{Name: "carol"}, can: "get", reason: `RBAC: allowed by ClusterRoleBinding "carol" of ClusterRole "shared-reader" to User "carol"`},
		{name: "own cluster role of the same name", cluster: "a", user: user.DefaultInfo{Name: "dave"}, can: "create", reason: `RBAC: allowed by ClusterRoleBinding "dave" of ClusterRole "shadowed" to User "dave"`},
		{name: "missing role", cluster: "a", user: user.DefaultInfo{Name: "erin"}, reason: `RBAC: clusterrole.rbac.authorization.k8s.io "missing" not found`},
		{name: "system binding", cluster: "b", user: user.DefaultInfo{Name: "x", Groups: list("everywhere")}, can: "get", reason: `RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "shared-reader" to Group "everywhere"`},
		{name: "system binding to a user", cluster: "unknown", user: user.DefaultInfo{Name: "roamer"}, can: "get", reason: `RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "shared-reader" to User "roamer"`},
		{name: "service account with the name of a system account", cluster: "b", user: user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Extra: from("b")}},
		{name: "service account with the name of a bound user", cluster: "b", user: user.DefaultInfo{Name: "system:serviceaccount:ns:bot2", Extra: from("b")}},
		{name: "system service account", cluster: system, user: user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Extra: from("system:admin")}, can: "get", reason: `RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "shared-reader" to User "system:serviceaccount:ns:bot"`},
		{name: "out of scope", cluster: "a", user: user.DefaultInfo{Name: "carol", Extra: map[string][]string{request.ExtraScopes: {"cluster:b"}}}},
		{name: "in scope", cluster: "a", user: user.DefaultInfo{Name: "carol", Extra: map[string][]string{request.ExtraScopes: {"cluster:b,cluster:a"}}}, can: "get", reason: `RBAC: allowed by ClusterRoleBinding "carol" of ClusterRole "shared-reader" to User "carol"`},
		{name: "warrant", cluster: "a", user: user.DefaultInfo{Name: "x", Extra: map[string][]string{request.ExtraWarrant: {`{"user":"carol"}`}}}, can: "get", reason: `RBAC: allowed by ClusterRoleBinding "carol" of ClusterRole "shared-reader" to User "carol"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := request.WithClusterName(t.Context(), tc.cluster)
			for _, verb := range []string{"get", "create"} {
				decision, reason, err := z.Authorize(ctx, authorizer.AttributesRecord{
					User: &tc.user, Verb: verb, Resource: "configmaps", Namespace: tc.namespace, ResourceRequest: true,
				})
				require.NoError(t, err)
				want := authorizer.DecisionNoOpinion
				if verb == tc.can {
					want = authorizer.DecisionAllow
				}
				require.Equal(t, want, decision, "%s: %s", verb, reason)
				if tc.can == "" || verb == tc.can {
					require.Equal(t, tc.reason, reason)
				}
			}
		})
	}
	_, _, err := z.Authorize(request.WithWildcard(t.Context()), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "roamer"}})
	require.ErrorIs(t, err, request.ErrWildcard)
}

func TestRules(t *testing.T) {
	f := rbac.NewFeed()
	get, list1, path := rule(list("get"), list(""), list("pods"), "a"), rule(list("list"), list(""), list("pods")), rbacv1.PolicyRule{Verbs: list("access"), NonResourceURLs: list("/")}
	f.SetRules("a", "ns", "r", get)
	f.SetRules(system, "", "c", list1, path)
	f.Bind("a", "ns", "r", rbac.Role("r"), rbac.User("u"))
	f.Bind("a", "", "c", rbac.ClusterRole("c"), rbac.User("u"))
	f.Bind("a", "ns", "m", rbac.Role("missing"), rbac.User("v"))
	z := f.Authorizer(system)
	ctx := request.WithClusterName(t.Context(), "a")
	u := &user.DefaultInfo{Name: "u"}

	rules, err := z.RulesOf(ctx, u, "ns")
	require.NoError(t, err)
	require.Equal(t, []rbacv1.PolicyRule{list1, path, get}, rules)
	rules, err = z.RulesOf(ctx, u, "")
	require.NoError(t, err)
	require.Equal(t, []rbacv1.PolicyRule{list1, path}, rules)
	resources, paths, incomplete, err := z.RulesFor(ctx, u, "ns")
	require.NoError(t, err)
	require.False(t, incomplete)
	require.Len(t, resources, 2)
	require.Equal(t, list("a"), resources[1].GetResourceNames())
	require.Len(t, paths, 1)
	_, err = z.RulesOf(ctx, &user.DefaultInfo{Name: "v"}, "ns")
	require.ErrorContains(t, err, `"missing" not found`)

	in := func(cluster logicalcluster.Name, kind, name, namespace string) ([]rbacv1.PolicyRule, error) {
		return z.RulesIn(request.WithClusterName(t.Context(), cluster), rbacv1.RoleRef{Kind: kind, Name: name}, namespace)
	}
	rules, err = in("a", "Role", "r", "ns")
	require.NoError(t, err)
	require.Equal(t, []rbacv1.PolicyRule{get}, rules)
	rules, err = in("nowhere", "ClusterRole", "c", "")
	require.NoError(t, err)
	require.Len(t, rules, 2)
	for _, ref := range [][3]string{{"Role", "r", "other"}, {"Role", "c", ""}, {"ClusterRole", "r", "ns"}, {"ClusterRole", "nothing", ""}} {
		_, err = in("a", ref[0], ref[1], ref[2])
		require.True(t, apierrors.IsNotFound(err), "%v: %v", ref, err)
	}
	_, err = in("a", "Pod", "r", "ns")
	require.ErrorContains(t, err, "unsupported role reference kind")
}

// TestPathsAreSorted checks that rules reviews list paths in one order.
func TestPathsAreSorted(t *testing.T) {
	f := rbac.NewFeed()
	urls := func(name string, paths ...string) {
		f.SetRules("a", "", name, rbacv1.PolicyRule{Verbs: list("get"), NonResourceURLs: paths})
		f.Bind("a", "", name, rbac.ClusterRole(name), rbac.User("u"))
	}
	urls("one", "/z", "/b", "/a")
	urls("two", "/y")
	urls("three", "/c", "/b")
	_, paths, _, err := f.Authorizer(system).RulesFor(request.WithClusterName(t.Context(), "a"), &user.DefaultInfo{Name: "u"}, "")
	require.NoError(t, err)
	var got [][]string
	for _, rule := range paths {
		got = append(got, rule.GetNonResourceURLs())
	}
	require.Equal(t, [][]string{{"/a", "/b", "/z"}, {"/b", "/c"}, {"/y"}}, got)
}

// TestGlobal checks that replicas of other servers count for their logical clusters, but not for local ones,
// and that system rules in them are ignored.
func TestGlobal(t *testing.T) {
	shards := rbac.NewShards(func(shard string) bool { return shard != "removed" })
	local, global, second, removed := rbac.NewFeed(), rbac.FeedOf(shards, "other"), rbac.FeedOf(shards, "second"), rbac.FeedOf(shards, "removed")
	everything := rule(list("*"), list("*"), list("*"))
	local.SetRules(system, "", "all", everything)
	global.SetRules("far", "", "r", everything)
	bind := func(f rbac.Feed, cluster logicalcluster.Name, name, role string) {
		f.Bind(cluster, "", name, rbac.ClusterRole(role), rbac.User(name))
	}
	bind(local, "near", "alice", "all")
	bind(global, "far", "bob", "r")
	bind(global, "far", "carol", "all")
	bind(global, system, "eve", "all")
	bind(global, "near", "mallory", "all")
	// If two shards have the same binding, it counts until both have deleted it, each with its own roles.
	// Replicas of an unregistered shard do not count.
	bind(global, "far", "dan", "all")
	bind(second, "far", "dan", "all")
	global.Unbind("far", "", "dan")
	bind(second, "far", "frank", "r")
	bind(removed, "far", "grace", "all")
	z := rbac.NewRBACAuthorizer(rbac.Config{
		Index: local.Index(), Global: shards, System: system,
		Local: func(name logicalcluster.Name) bool { return name == "near" },
	})
	for _, tc := range []struct {
		cluster logicalcluster.Name
		user    string
		want    authorizer.Decision
	}{
		{"near", "alice", authorizer.DecisionAllow}, {"near", "bob", authorizer.DecisionNoOpinion}, {"near", "eve", authorizer.DecisionNoOpinion},
		{"near", "mallory", authorizer.DecisionNoOpinion},
		{"far", "bob", authorizer.DecisionAllow}, {"far", "carol", authorizer.DecisionAllow}, {"far", "alice", authorizer.DecisionNoOpinion}, {"far", "eve", authorizer.DecisionNoOpinion},
		{"far", "dan", authorizer.DecisionAllow}, {"far", "frank", authorizer.DecisionNoOpinion}, {"far", "grace", authorizer.DecisionNoOpinion},
	} {
		decision, _, err := z.Authorize(request.WithClusterName(t.Context(), tc.cluster), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: tc.user}, Verb: "get", Resource: "pods", ResourceRequest: true,
		})
		require.NoError(t, err)
		require.Equal(t, tc.want, decision, "%s in %s", tc.user, tc.cluster)
	}
}

// TestChanges checks that the index follows all changes and becomes empty.
func TestChanges(t *testing.T) {
	f := rbac.NewFeed()
	z := f.Authorizer(system)
	can := func(name string) bool {
		decision, _, err := z.Authorize(request.WithClusterName(context.WithoutCancel(t.Context()), "a"), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name}, Verb: "get", Resource: "pods", ResourceRequest: true,
		})
		require.NoError(t, err)
		return decision == authorizer.DecisionAllow
	}
	role := &rbacv1.ClusterRole{ObjectMeta: rbac.Meta("a", "", "r"), Rules: []rbacv1.PolicyRule{rule(list("get"), list(""), list("pods"))}}
	f.Bind("a", "", "b", rbac.ClusterRole("r"), rbac.User("u"), rbac.User("v"), rbac.User("u"))
	require.False(t, can("u"))
	f.SetClusterRole(role)
	require.True(t, can("u"))
	require.True(t, can("v"))
	f.Bind("a", "", "b", rbac.ClusterRole("r"), rbac.User("v"))
	require.False(t, can("u"))
	require.True(t, can("v"))
	f.RemoveClusterRole(role)
	require.False(t, can("v"))
	f.SetClusterRole(role)
	require.True(t, can("v"))
	f.Unbind("a", "", "b")
	require.False(t, can("v"))
	require.Equal(t, 1, f.Clusters())
	f.RemoveClusterRole(role)
	f.RemoveClusterRole(role)
	require.Zero(t, f.Clusters())
}

// TestLocalAggregation checks that roles that a logical cluster adds to an aggregated system role count only
// there.
func TestLocalAggregation(t *testing.T) {
	f := rbac.NewFeed()
	selector := metav1.LabelSelector{MatchLabels: map[string]string{"to-view": "true"}}
	f.SetClusterRole(&rbacv1.ClusterRole{
		ObjectMeta: rbac.Meta(system, "", "view"), Rules: []rbacv1.PolicyRule{rule(list("get"), list(""), list("pods"))},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{selector}},
	})
	added := &rbacv1.ClusterRole{ObjectMeta: rbac.Meta("a", "", "more"), Rules: []rbacv1.PolicyRule{rule(list("get"), list("x"), list("widgets"))}}
	added.Labels = selector.MatchLabels
	f.SetClusterRole(added)
	for _, cluster := range []logicalcluster.Name{"a", "b"} {
		f.Bind(cluster, "", "u", rbac.ClusterRole("view"), rbac.User("u"))
	}
	z := f.Authorizer(system)
	count := func(cluster logicalcluster.Name) int {
		rules, err := z.RulesOf(request.WithClusterName(t.Context(), cluster), &user.DefaultInfo{Name: "u"}, "")
		require.NoError(t, err)
		bound, err := z.RulesIn(request.WithClusterName(t.Context(), cluster), rbac.ClusterRole("view"), "")
		require.NoError(t, err)
		require.Equal(t, rules, bound, "the rules of the role and of its binding must be equal")
		return len(rules)
	}
	require.Equal(t, 2, count("a"))
	require.Equal(t, 1, count("b"))
	added = added.DeepCopy()
	added.Labels = nil
	f.SetClusterRole(added)
	require.Equal(t, 1, count("a"))
}
