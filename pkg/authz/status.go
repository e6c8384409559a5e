package authz

import (
	"context"

	sdkapis "github.com/kcp-dev/sdk/apis/apis"
	sdkcore "github.com/kcp-dev/sdk/apis/core"
	sdktenancy "github.com/kcp-dev/sdk/apis/tenancy"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

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
			return authorizer.DecisionDeny, "the status of " + a.GetResource() + " is written by the system only", nil
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
