package authz_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestAdminGate checks that the complete installation is accessible for administrators, and readable for
// shards, regardless of the rules, and that the gate does not affect other requests.
func TestAdminGate(t *testing.T) {
	rules := authorizer.DecisionNoOpinion
	gate := authz.WithAdminGate(authorizer.AuthorizerFunc(func(_ context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
		return rules, "", nil
	}))
	restricted := map[string][]string{request.ExtraScopes: {"cluster:elsewhere"}}
	list := authorizer.AttributesRecord{Verb: "list", APIGroup: "core.kcp.io", Resource: "shards", ResourceRequest: true}
	discovery := authorizer.AttributesRecord{Verb: "get", Path: "/apis"}
	remove := authorizer.AttributesRecord{Verb: "delete", APIGroup: "core.kcp.io", Resource: "shards", ResourceRequest: true}
	post := authorizer.AttributesRecord{Verb: "post", Path: "/apis"}
	for name, tc := range map[string]struct {
		user       *user.DefaultInfo
		may, mayNo []authorizer.AttributesRecord
	}{
		"master":              {&user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}}, []authorizer.AttributesRecord{list, discovery, remove, post}, nil},
		"administrator":       {&user.DefaultInfo{Groups: []string{request.GroupAdmin}}, []authorizer.AttributesRecord{list, discovery, remove}, nil}, // there is nothing to delete: 405
		"shard":               {&user.DefaultInfo{Groups: []string{request.GroupShards}}, []authorizer.AttributesRecord{list, discovery}, []authorizer.AttributesRecord{remove, post}},
		"restricted":          {&user.DefaultInfo{Groups: []string{request.GroupAdmin}, Extra: restricted}, nil, []authorizer.AttributesRecord{list, discovery}},
		"stranger with rules": {&user.DefaultInfo{Groups: []string{user.AllAuthenticated}}, nil, []authorizer.AttributesRecord{list, discovery, remove}},
	} {
		in := request.WithScope(t.Context(), request.Scope{Mount: request.Admin})
		for want, all := range map[authorizer.Decision][]authorizer.AttributesRecord{authorizer.DecisionAllow: tc.may, authorizer.DecisionDeny: tc.mayNo} {
			for _, a := range all {
				a.User = tc.user
				for _, rules = range []authorizer.Decision{authorizer.DecisionAllow, authorizer.DecisionNoOpinion, authorizer.DecisionDeny} {
					decision, _, err := gate.Authorize(in, a)
					require.NoError(t, err)
					require.Equal(t, want, decision, "%s %+v", name, a)
					decision, _, err = gate.Authorize(t.Context(), a)
					require.NoError(t, err)
					require.Equal(t, rules, decision, "other requests must be authorized by the rules")
				}
			}
		}
	}
}
