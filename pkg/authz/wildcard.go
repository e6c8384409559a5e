package authz

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// WithWildcardGate denies requests for all logical clusters, except to members of system:masters and for
// reads of shards. Administrators may list and watch if a front-proxy merges the responses of all shards. It
// calls next for all other requests.
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

// merged reports whether a front-proxy merges the responses of all shards to a.
func merged(ctx context.Context, a authorizer.Attributes) bool {
	return request.IsMerged(ctx) && a.IsResourceRequest() && (a.GetVerb() == "list" || a.GetVerb() == "watch")
}

// WithAdminGate allows requests for request.Admin, which contains objects of the complete installation, to
// administrators, and reads to shards, and denies them to all other users regardless of rules. It calls next
// for other requests and impersonation.
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
			return authorizer.DecisionDeny, "requests for the complete installation need group " + request.GroupAdmin, nil
		}
	})
}
