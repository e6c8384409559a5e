package authz

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// VirtualWorkspaces authorizes requests to the content of other logical clusters through a virtual workspace.
type VirtualWorkspaces interface {
	// Opens authorizes the use of the virtual workspace. next authorizes requests to the logical cluster that
	// grants it.
	Opens(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error)
	// Permits authorizes a request within the virtual workspace, for a user who may use it. No opinion denies
	// the request.
	Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	// Shows reports whether the virtual workspace has access to the requested content, so that its users may
	// see that the content exists.
	Shows(ctx context.Context) bool
}

// WithVirtualWorkspaces first authorizes the use of the virtual workspace of a request, and then the request
// within it, so that other users cannot see what it contains. Impersonation is authorized by the logical
// cluster that grants the virtual workspace, like other requests to it. A user of the virtual workspace is
// recorded as authorized for the content that it shows; a user of the logical cluster that grants it is not.
func WithVirtualWorkspaces(next authorizer.Authorizer, virtualWorkspaces VirtualWorkspaces) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if request.VirtualWorkspaceFrom(ctx) == nil {
			return next.Authorize(ctx, a)
		}
		if virtualWorkspaces == nil {
			return authorizer.DecisionDeny, "this server has no virtual workspaces", nil
		}
		granting := request.OnAccessAuthorized(ctx, func() {}) // the granting logical cluster is not the requested content
		opens, reason, err := virtualWorkspaces.Opens(granting, a, next)
		if opens == authorizer.DecisionAllow && virtualWorkspaces.Shows(ctx) {
			request.AccessAuthorized(ctx)
		}
		switch {
		case strings.HasPrefix(a.GetVerb(), verbImpersonate):
			return next.Authorize(granting, a)
		case opens != authorizer.DecisionAllow:
			return opens, reason, err
		}
		return virtualWorkspaces.Permits(ctx, a)
	})
}

// WithinVirtualWorkspaces authorizes requests that have passed through a virtual workspace as if they were
// sent to it again, by their senders. Handlers use it if an update creates an object, because the verb create
// has not been authorized yet.
func WithinVirtualWorkspaces(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		through, found := request.ThroughFrom(ctx)
		if !found {
			return next.Authorize(ctx, a)
		}
		scope := request.Scope{Mount: through.Mount, Cluster: request.Cluster{Name: through.Provider}, VirtualWorkspace: &request.VirtualWorkspace{Name: through.VirtualWorkspace}}
		scope.VirtualWorkspace.In, _ = request.ClusterFrom(ctx)
		if sender, ok := identity.SenderFrom(ctx); ok {
			a = As(a, sender)
		}
		return next.Authorize(request.WithScope(ctx, scope), a)
	})
}

// As returns attributes with another user.
func As(a authorizer.Attributes, u user.Info) authorizer.Attributes { return as{a, u} }

type as struct {
	authorizer.Attributes
	u user.Info
}

func (a as) GetUser() user.Info { return a.u }
