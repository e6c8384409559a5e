package authz_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
)

func TestShardsRead(t *testing.T) {
	chain := newChain(t, nil)
	shard := &user.DefaultInfo{Name: "system:shard:there", Groups: []string{"system:kcp:shards", user.AllAuthenticated}}
	restricted := &user.DefaultInfo{Name: shard.Name, Groups: shard.Groups, Extra: map[string][]string{request.ExtraScopes: {"cluster:elsewhere"}}}
	resource := func(verb, group, name, subresource string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, APIGroup: group, Resource: name, Subresource: subresource, ResourceRequest: true, User: shard}
	}
	path := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path, User: shard}
	}
	in := map[string]context.Context{
		"": t.Context(), "*": request.WithWildcard(t.Context()), "root": request.WithClusterName(t.Context(), "root"),
	}
	const tenancy, core, authorization = "tenancy.kcp.io", "core.kcp.io", "authorization.k8s.io"
	for _, tc := range []struct {
		cluster string
		a       authorizer.AttributesRecord
		want    bool
	}{
		{"root", resource("get", tenancy, "workspaces", ""), true},
		{"root", resource("list", "", "secrets", ""), true},
		{"*", resource("list", tenancy, "workspaces", ""), true},
		{"*", resource("watch", core, "logicalclusters", ""), true},
		{"*", resource("deletecollection", core, "logicalclusters", ""), false},
		{"*", resource("create", core, "logicalclusters", ""), false},
		{"root", resource("create", core, "logicalclusters", ""), false},
		{"root", resource("delete", core, "logicalclusters", ""), false},
		{"root", resource("patch", tenancy, "workspaces", ""), false},
		{"root", resource("update", tenancy, "workspaces", "status"), false},
		{"root", resource("create", "", "events", ""), false},
		{"root", resource("impersonate", "", "users", ""), false},
		{"root", resource("create", "", "serviceaccounts", "token"), false},
		{"root", resource("create", authorization, "subjectaccessreviews", ""), true},
		{"root", resource("create", "", "pods", "exec"), false},
		{"root", resource("create", core, "shards", ""), true},
		{"root", resource("patch", core, "shards", ""), true},
		{"root", resource("update", core, "shards", "status"), false},
		{"root", resource("delete", core, "shards", ""), false},
		{"root", resource("update", "coordination.k8s.io", "leases", ""), true},
		{"root", resource("delete", "coordination.k8s.io", "leases", ""), false},
		{"", path("get", "/metrics"), false},
		{"", path("get", "/debug/pprof"), false},
		{"root", path("get", "/apis/example.org/v1"), true},
		{"root", path("get", "/api/v1"), true},
		{"root", path("post", "/apis/example.org/v1"), false},
		{"root", path("get", "/openapi/v3/apis/example.org/v1"), false},
		{"", path("get", "/apis/example.org/v1"), false},
		{"*", path("get", "/apis/example.org/v1"), false},
	} {
		decision, _, err := chain.Authorize(in[tc.cluster], tc.a)
		require.NoError(t, err)
		require.Equal(t, tc.want, decision == authorizer.DecisionAllow, "%+v in %q", tc.a, tc.cluster)
		tc.a.User = restricted
		decision, _, _ = chain.Authorize(in[tc.cluster], tc.a)
		require.NotEqual(t, authorizer.DecisionAllow, decision, "%+v in %q", tc.a, tc.cluster)
	}
	other := request.WithClusterName(t.Context(), "other")
	decision, _, err := chain.Authorize(other, resource("create", core, "shards", ""))
	require.NoError(t, err)
	require.NotEqual(t, authorizer.DecisionAllow, decision)
}
