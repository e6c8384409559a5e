package authz_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
)

func TestChain(t *testing.T) {
	exists := func(_ context.Context, name logicalcluster.Name) (bool, error) {
		if name == "broken" {
			return false, errors.New("no answer")
		}
		return name == "root", nil
	}
	chain, err := authz.New(authz.Config{OpenPaths: []string{"/readyz", "/readyz/*"}, ClusterExists: exists})
	require.NoError(t, err)

	none := t.Context()
	in := func(name logicalcluster.Name) context.Context { return request.WithClusterName(none, name) }
	all := request.WithWildcard(none)

	for _, tc := range []struct {
		name    string
		ctx     context.Context //nolint:containedctx // the context is the test's input
		path    string
		groups  []string
		want    authorizer.Decision
		wantErr bool
	}{
		{name: "masters anywhere", ctx: in("root"), groups: []string{user.SystemPrivilegedGroup}, want: authorizer.DecisionAllow},
		{name: "masters see unknown logical clusters as empty", ctx: in("nowhere"), groups: []string{user.SystemPrivilegedGroup}, want: authorizer.DecisionAllow},
		{name: "masters on the wildcard", ctx: all, groups: []string{user.SystemPrivilegedGroup}, want: authorizer.DecisionAllow},
		{name: "masters on the process", ctx: none, path: "/metrics", groups: []string{user.SystemPrivilegedGroup}, want: authorizer.DecisionAllow},
		{name: "admins in a logical cluster", ctx: in("root"), groups: []string{authz.GroupAdmin}, want: authorizer.DecisionAllow},
		{name: "admins in an unknown one", ctx: in("nowhere"), groups: []string{authz.GroupAdmin}, want: authorizer.DecisionDeny},
		{name: "admins on the wildcard", ctx: all, groups: []string{authz.GroupAdmin}, want: authorizer.DecisionDeny},
		{name: "a failed look-up never allows", ctx: in("broken"), groups: []string{authz.GroupAdmin}, want: authorizer.DecisionNoOpinion, wantErr: true},
		{name: "others", ctx: in("root"), groups: []string{"team-1", user.AllAuthenticated}, want: authorizer.DecisionNoOpinion},
		{name: "others cannot tell a failed look-up", ctx: in("broken"), groups: []string{"team-1"}, want: authorizer.DecisionNoOpinion},
		{name: "others on the wildcard", ctx: all, groups: []string{"team-1"}, want: authorizer.DecisionDeny},
		{name: "nobody in particular, probes", ctx: none, path: "/readyz", want: authorizer.DecisionAllow},
		{name: "nobody in particular, one probe", ctx: none, path: "/readyz/etcd", want: authorizer.DecisionAllow},
		{name: "nobody in particular, metrics", ctx: none, path: "/metrics", want: authorizer.DecisionNoOpinion},
	} {
		t.Run(tc.name, func(t *testing.T) {
			attributes := authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: "somebody", Groups: tc.groups}, Verb: "get", Path: tc.path, ResourceRequest: tc.path == "",
			}
			got, _, err := chain.Authorize(tc.ctx, attributes)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.wantErr, err != nil, "%v", err)
		})
	}
}
