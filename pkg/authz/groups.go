package authz

import (
	"context"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// IsPrivilegedGroup reports whether members of a group may do more than any
// logical cluster can let them.
func IsPrivilegedGroup(group string) bool {
	return group == user.SystemPrivilegedGroup || strings.HasPrefix(group, request.GroupPrefix)
}

// Privileged lets the members of groups do everything and has no opinion on
// anybody else. A user who is restricted to some logical clusters is a member
// in those only.
func Privileged(groups ...string) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if identity.MemberOf(ctx, a.GetUser(), groups...) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
}

// OnProcess asks next about requests that are about the serving process itself,
// and has no opinion on those for a logical cluster, there or not.
func OnProcess(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if _, nowhere := request.NowhereFrom(ctx); nowhere {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return WithoutCluster(next).Authorize(ctx, a)
	})
}

// onMetrics asks next about requests for metrics.
func onMetrics(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if path := a.GetPath(); a.IsResourceRequest() || path != "/metrics" && !strings.HasPrefix(path, "/metrics/") {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return next.Authorize(ctx, a)
	})
}

// WithoutCluster asks next about requests that are for no logical cluster:
// about the process itself, or on a path that leads to none.
func WithoutCluster(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if _, ok := request.ClusterFrom(ctx); ok {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return next.Authorize(ctx, a)
	})
}

// clusterName returns the logical cluster of ctx; empty where it is not one.
func clusterName(ctx context.Context) logicalcluster.Name {
	cluster, _ := request.ClusterFrom(ctx)
	return cluster.Name
}
