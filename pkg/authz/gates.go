package authz

import (
	"context"
	"strings"

	sdkapis "github.com/kcp-dev/sdk/apis/apis"
	sdkcore "github.com/kcp-dev/sdk/apis/core"
	sdktenancy "github.com/kcp-dev/sdk/apis/tenancy"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// protectedStatus are the resources whose status servers rely on, e.g. for the phase of a logical cluster and
// its bound APIs. Only the system may write it.
var protectedStatus = map[schema.GroupResource]bool{
	{Group: sdkapis.GroupName, Resource: "apibindings"}:     true,
	{Group: sdkapis.GroupName, Resource: "apiexports"}:      true,
	{Group: sdkcore.GroupName, Resource: "logicalclusters"}: true,
	{Group: sdktenancy.GroupName, Resource: "workspaces"}:   true,
}

// WithProtectedStatus denies writes of the status of system APIs to all users except administrators and
// servers, regardless of the rules of the logical cluster. It calls next for all other requests.
func WithProtectedStatus(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		writes := a.GetVerb() == "update" || a.GetVerb() == "patch" || a.GetVerb() == "create" || a.GetVerb() == "delete"
		if writes && a.GetSubresource() == "status" && protectedStatus[schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}] &&
			!identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup, request.GroupAdmin) && !isLifecycle(ctx, a.GetUser()) {
			return authorizer.DecisionDeny, "the status of " + a.GetResource() + " may only be written by the system", nil
		}
		return next.Authorize(ctx, a)
	})
}

// MaximalPermission applies the maximal permission policy of the provider of a bound API. It allows requests
// without a policy, and denies, with a reason, requests that the policy does not permit.
type MaximalPermission func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)

// WithMaximalPermission calls next only for requests that the policy permits.
func WithMaximalPermission(next authorizer.Authorizer, permits MaximalPermission) authorizer.Authorizer {
	if permits == nil {
		return next
	}
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if decision, reason, err := permits(ctx, a); decision != authorizer.DecisionAllow {
			return decision, reason, err
		}
		return next.Authorize(ctx, a)
	})
}
