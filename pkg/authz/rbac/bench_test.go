package rbac_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz/policy"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/request"
)

// BenchmarkAuthorize measures a decision with n logical clusters, each with an owner, ten users with a role
// in a namespace, and one group with a cluster role of the system: for an owner, a user with a role, and a
// user without.
func BenchmarkAuthorize(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		f := rbac.NewFeed()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		fill(f, n)
		runtime.GC()
		runtime.ReadMemStats(&after)
		z := f.Authorizer(system)
		for _, tc := range []struct {
			name string
			user user.DefaultInfo
			want authorizer.Decision
		}{
			{"owner", user.DefaultInfo{Name: "owner", Groups: list("team", user.AllAuthenticated)}, authorizer.DecisionAllow},
			{"member", user.DefaultInfo{Name: "user-5", Groups: list("team", user.AllAuthenticated)}, authorizer.DecisionAllow},
			{"stranger", user.DefaultInfo{Name: "stranger", Groups: list("g1", "g2", "g3", "g4", user.AllAuthenticated)}, authorizer.DecisionNoOpinion},
			{"service account", user.DefaultInfo{
				Name: "system:serviceaccount:default:x", Groups: list("system:serviceaccounts", "system:serviceaccounts:default", user.AllAuthenticated),
				Extra: map[string][]string{request.ExtraClusterName: {"c0"}},
			}, authorizer.DecisionNoOpinion},
		} {
			b.Run(fmt.Sprintf("clusters=%d/%s", n, tc.name), func(b *testing.B) {
				ctx := request.WithClusterName(b.Context(), logicalcluster.Name(fmt.Sprintf("c%d", n/2)))
				attributes := authorizer.AttributesRecord{User: &tc.user, Verb: "get", Resource: "configmaps", Namespace: "default", ResourceRequest: true}
				b.ReportAllocs()
				for b.Loop() {
					if decision, _, err := z.Authorize(ctx, attributes); decision != tc.want || err != nil {
						b.Fatal(decision, err)
					}
				}
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "B/cluster")
			})
		}
		runtime.KeepAlive(f)
	}
}

func fill(f rbac.Feed, clusters int) {
	shipped := policy.System()
	for _, role := range shipped.ClusterRoles {
		role.Annotations = rbac.Meta(system, "", "").Annotations
		f.SetClusterRole(role)
	}
	for _, binding := range shipped.ClusterRoleBindings {
		f.Bind(system, "", binding.Name, binding.RoleRef, binding.Subjects...)
	}
	for n := range clusters {
		cluster := logicalcluster.Name(fmt.Sprintf("c%d", n))
		f.Bind(cluster, "", "workspace-admin", rbac.ClusterRole("cluster-admin"), rbac.User("owner"))
		f.Bind(cluster, "", "access", rbac.ClusterRole("system:kcp:workspace:access"), subject("Group", "", "team"))
		f.SetRules(cluster, "default", "r",
			rule(list("get", "list"), list(""), list("secrets")),
			rule(list("get", "list", "watch"), list(""), list("pods", "configmaps")))
		for u := range 10 {
			f.Bind(cluster, "default", fmt.Sprintf("r-%d", u), rbac.Role("r"), rbac.User(fmt.Sprintf("user-%d", u)))
		}
	}
}

// BenchmarkBindings measures writing one of n bindings of one user, and a decision about the user, whose
// roles have no rules.
func BenchmarkBindings(b *testing.B) {
	for _, n := range []int{100, 1000, 100_000} {
		f := rbac.NewFeed()
		write := func(i int) {
			name := fmt.Sprintf("r-%d", i%n)
			f.Bind("c", "default", name, rbac.Role(name), rbac.User("user"))
		}
		for i := range n {
			write(i)
		}
		b.Run(fmt.Sprintf("bindings=%d/write", n), func(b *testing.B) {
			i := 0
			for b.Loop() {
				write(i)
				i++
			}
		})
		z := f.Authorizer(system)
		ctx := request.WithClusterName(b.Context(), "c")
		attributes := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "user"}, Verb: "get", Resource: "configmaps", Namespace: "default", ResourceRequest: true}
		b.Run(fmt.Sprintf("bindings=%d/decide", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := z.Authorize(ctx, attributes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
