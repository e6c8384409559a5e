package authz

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// WithWildcardGate denies requests for all logical clusters to everybody but
// members of system:masters, and shards that read, and asks next about the rest.
func WithWildcardGate(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		cluster, ok := request.ClusterFrom(ctx)
		if ok && cluster.Wildcard && !identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup) &&
			(!Reads(a) || !identity.MemberOf(ctx, a.GetUser(), request.GroupShards)) {
			return authorizer.DecisionDeny, "requests for all logical clusters need group " + user.SystemPrivilegedGroup, nil
		}
		return next.Authorize(ctx, a)
	})
}
