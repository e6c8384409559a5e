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

// virtualWorkspace is a type of virtual workspace.
type virtualWorkspace interface {
	// Needs returns the attributes that the user of the virtual workspace must be allowed in the logical cluster that
	// grants it.
	Needs(ctx context.Context, a authorizer.Attributes) authorizer.Attributes
	Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	Shows(ctx context.Context) bool
	// Wrap returns the filter of requests to such virtual workspaces.
	Wrap(next http.Handler) http.Handler
}

// virtualWorkspaces implements authz.VirtualWorkspaces for all types of virtual workspaces.
type virtualWorkspaces struct {
	kinds map[*request.Mount]virtualWorkspace
	// local reports whether a logical cluster is on this shard.
	local func(name logicalcluster.Name) bool
	rules authorizer.Authorizer
	// findRemote returns the LogicalClusters of other shards.
	findRemote authz.FindLogicalCluster
}

func (v virtualWorkspaces) of(ctx context.Context) virtualWorkspace {
	return v.kinds[request.ScopeFrom(ctx).Mount]
}

// Opens authorizes in the logical cluster that grants the virtual workspace. If that is on another shard, the replicated
// rules and its required groups decide. No review is sent to the other shard, because the response time would disclose
// that it has the logical cluster.
func (v virtualWorkspaces) Opens(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error) {
	needs := v.of(ctx).Needs(ctx, a)
	granting, _ := request.ClusterFrom(ctx)
	if granting.Name == "" || v.local(granting.Name) || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup) {
		return next.Authorize(ctx, needs)
	}
	decision, _, err := authz.WithRequiredGroups(v.rules, v.findRemote).Authorize(ctx, needs)
	if decision != authorizer.DecisionAllow {
		return authorizer.DecisionNoOpinion, authz.NotPermittedReason, err
	}
	return decision, "", nil
}

func (v virtualWorkspaces) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return v.of(ctx).Permits(ctx, a)
}

func (v virtualWorkspaces) Shows(ctx context.Context) bool { return v.of(ctx).Shows(ctx) }

func (v virtualWorkspaces) wrap(next http.Handler) http.Handler {
	filters := make(map[*request.Mount]http.Handler, len(v.kinds))
	for _, mount := range request.VirtualWorkspaceMounts() {
		filters[mount] = v.kinds[mount].Wrap(next) // a missing type must fail the start
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler := next
		if scope := request.ScopeFrom(r.Context()); scope.VirtualWorkspace != nil {
			handler = filters[scope.Mount]
		}
		handler.ServeHTTP(w, r)
	})
}
