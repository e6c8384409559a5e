package authz

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// WithWildcardGate denies requests for all logical clusters to everybody but
// members of system:masters and shards that read, and asks next about theirs and the
// rest. Administrators may list and watch where a front-proxy merges the answers of
// all shards.
func WithWildcardGate(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		cluster, ok := request.ClusterFrom(ctx)
		switch {
		case !ok || !cluster.Wildcard || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup),
			Reads(a) && identity.MemberOf(ctx, a.GetUser(), request.GroupShards):
			return next.Authorize(ctx, a)
		case merged(ctx, a) && identity.MemberOf(ctx, a.GetUser(), request.GroupAdmin):
			request.AccessAuthorized(ctx)
			return authorizer.DecisionAllow, "", nil
		default:
			return authorizer.DecisionDeny, "requests for all logical clusters need group " + user.SystemPrivilegedGroup, nil
		}
	})
}

// merged reports whether a front-proxy asked all shards for a, and merges their answers.
func merged(ctx context.Context, a authorizer.Attributes) bool {
	return request.IsMerged(ctx) && a.IsResourceRequest() && (a.GetVerb() == "list" || a.GetVerb() == "watch")
}

// WithAdminGate lets administrators, and shards that read, have what is of the whole installation
// (request.Admin), and denies it to everybody else, whatever rules there are. It asks next about
// the rest, and about whom somebody may impersonate.
func WithAdminGate(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		reads := Reads(a) || !a.IsResourceRequest() && (a.GetVerb() == "get" || a.GetVerb() == "head")
		switch {
		case request.ScopeFrom(ctx).Mount != request.Admin, strings.HasPrefix(a.GetVerb(), verbImpersonate):
			return next.Authorize(ctx, a)
		case identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup, request.GroupAdmin),
			reads && identity.MemberOf(ctx, a.GetUser(), request.GroupShards):
			return authorizer.DecisionAllow, "", nil
		default:
			return authorizer.DecisionDeny, "what is of the whole installation needs group " + request.GroupAdmin, nil
		}
	})
}
