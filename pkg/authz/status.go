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

// protectedStatus are the system's kinds whose status only the system writes:
// it says where a logical cluster stands and which APIs are bound, and the
// servers believe it.
var protectedStatus = map[schema.GroupResource]bool{
	{Group: sdkapis.GroupName, Resource: "apibindings"}:     true,
	{Group: sdkapis.GroupName, Resource: "apiexports"}:      true,
	{Group: sdkcore.GroupName, Resource: "logicalclusters"}: true,
	{Group: sdktenancy.GroupName, Resource: "workspaces"}:   true,
}

// WithProtectedStatus denies everybody but administrators and the servers to
// write the status of the system's kinds, whatever the rules of a logical
// cluster say, and asks next about the rest.
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
