package authz

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Views decide about requests that reach the content of other logical clusters through
// a view (request.View).
type VirtualWorkspaces interface {
	// Opens decides whether the sender of a request may use the view. next decides about
	// requests to the logical cluster that grants it.
	Opens(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error)
	// Permits decides whether whoever may open the view may do in it what the attributes
	// say. Without an opinion the request is denied.
	Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	// Shows reports whether the view has something to do with what it is to see, so that
	// who may open it may know that this exists.
	Shows(ctx context.Context) bool
}

// WithViews asks next, about a request through a view, whether its sender may open it,
// and only then about what the request does: nobody else learns what is there to
// be seen. Whom somebody may impersonate is for the logical cluster that grants the view
// to say, as for any other request to it. Who may open the view has entered, for the
// front-proxy, where the view shows something; who may enter the logical cluster that
// grants it has not.
func WithVirtualWorkspaces(next authorizer.Authorizer, views VirtualWorkspaces) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if request.VirtualWorkspaceFrom(ctx) == nil {
			return next.Authorize(ctx, a)
		}
		if views == nil {
			return authorizer.DecisionDeny, "this server has no views", nil
		}
		granting := request.WithEntry(ctx, func() {}) // it is not what the request is to see
		opens, reason, err := views.Opens(granting, a, next)
		if opens == authorizer.DecisionAllow && views.Shows(ctx) {
			request.AccessAuthorized(ctx)
		}
		switch {
		case strings.HasPrefix(a.GetVerb(), verbImpersonate):
			return next.Authorize(granting, a)
		case opens != authorizer.DecisionAllow:
			return opens, reason, err
		}
		return views.Permits(ctx, a)
	})
}

// WithinViews asks next about requests that have entered a view as before they did: they are
// by their senders, and through the view. Handlers ask once more where an update creates, which
// is a verb that nobody has been asked about yet.
func WithinVirtualWorkspaces(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		through, entered := request.ThroughFrom(ctx)
		if !entered {
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

// GetUser implements authorizer.Attributes.
func (a as) GetUser() user.Info { return a.u }
