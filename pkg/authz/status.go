package authz

import (
	"context"

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
	{Group: "apis.kcp.io", Resource: "apibindings"}:     true,
	{Group: "apis.kcp.io", Resource: "apiexports"}:      true,
	{Group: "core.kcp.io", Resource: "logicalclusters"}: true,
	{Group: "tenancy.kcp.io", Resource: "workspaces"}:   true,
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
