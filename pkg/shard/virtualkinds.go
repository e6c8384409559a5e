package shard

import (
	"context"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// view is one kind of views.
type view interface {
	// Needs returns what whoever uses a view has to be allowed in the logical cluster that
	// grants it, for the attributes of a request.
	Needs(ctx context.Context, a authorizer.Attributes) authorizer.Attributes
	// Permits is that of authz.Views.
	Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	// Shows is that of authz.Views.
	Shows(ctx context.Context) bool
	// Wrap returns the filter of requests that come through such a view.
	Wrap(next http.Handler) http.Handler
}

// views are all kinds, by where they are. They implement authz.Views.
type views struct {
	kinds map[*request.Mount]view
	// local reports whether the shard holds a logical cluster. About others rules decide.
	local func(name logicalcluster.Name) bool
	rules authorizer.Authorizer
	// elsewhere finds the LogicalClusters of other shards.
	elsewhere authz.FindLogicalCluster
}

func (v views) of(ctx context.Context) view { return v.kinds[request.ScopeFrom(ctx).Mount] }

// Opens implements authz.Views. About a logical cluster of another shard the rules, and the
// groups that it requires, decide that are known here. That one is not asked: the time that
// it takes would tell that it has it.
func (v views) Opens(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error) {
	needs := v.of(ctx).Needs(ctx, a)
	granting, _ := request.ClusterFrom(ctx)
	if granting.Name == "" || v.local(granting.Name) || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup) {
		return next.Authorize(ctx, needs)
	}
	decision, _, err := authz.WithRequiredGroups(v.rules, v.elsewhere).Authorize(ctx, needs)
	if decision != authorizer.DecisionAllow {
		return authorizer.DecisionNoOpinion, authz.NotPermittedReason, err
	}
	return decision, "", nil
}

// Permits implements authz.Views.
func (v views) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return v.of(ctx).Permits(ctx, a)
}

// Shows implements authz.Views.
func (v views) Shows(ctx context.Context) bool { return v.of(ctx).Shows(ctx) }

// wrap is the filter of all views.
func (v views) wrap(next http.Handler) http.Handler {
	filters := make(map[*request.Mount]http.Handler, len(v.kinds))
	for _, mount := range request.VirtualWorkspaceMounts() {
		filters[mount] = v.kinds[mount].Wrap(next) // one that has no kind must not start
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler := next
		if scope := request.ScopeFrom(r.Context()); scope.VirtualWorkspace != nil {
			handler = filters[scope.Mount]
		}
		handler.ServeHTTP(w, r)
	})
}
