package authz

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// WithRequiredGroups asks next about users who may enter the logical cluster as
// far as others are concerned. It withdraws what next allows to those who are not
// in the groups that the logical cluster requires, and lets the server know that
// the others have entered. Its own service accounts are exempt, and as in kcp those
// who administer the installation: they name the groups, and must be able to undo that.
func WithRequiredGroups(next authorizer.Authorizer, find FindLogicalCluster) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		name, err := request.ClusterNameFrom(ctx)
		if err != nil || isDeepReview(ctx) || isLifecycle(ctx, a.GetUser()) || identity.IsLocalServiceAccount(name, a.GetUser()) {
			request.Entered(ctx)
			return next.Authorize(ctx, a)
		}
		lc, err := find(ctx, name)
		if err != nil {
			return authorizer.DecisionNoOpinion, "", fmt.Errorf("looking up logical cluster %q: %w", name, err)
		}
		if lc != nil && isAdmitted(ctx, lc, a.GetUser()) {
			request.Entered(ctx)
			return next.Authorize(ctx, a)
		}
		decision, reason, err := next.Authorize(ctx, a)
		if decision == authorizer.DecisionAllow {
			return authorizer.DecisionDeny, NotPermittedReason, nil
		}
		return decision, reason, err
	})
}

// isAdmitted reports whether the required groups of a logical cluster, which is that of ctx,
// let u enter.
func isAdmitted(ctx context.Context, lc *corev1alpha1.LogicalCluster, u user.Info) bool {
	return identity.MemberOf(ctx, u, request.GroupAdmin, request.GroupWorkspaceBootstrapper) ||
		inRequiredGroups(clusterName(ctx), u, lc.Annotations[tenancy.RequiredGroupsAnnotation])
}

// inRequiredGroups reports whether one identity of u is in all groups of one of
// the alternatives.
func inRequiredGroups(name logicalcluster.Name, u user.Info, required string) bool {
	if strings.TrimSpace(required) == "" {
		return true
	}
	var groups []string
	for _, i := range identity.In(name, u) {
		groups = append(groups, i.GetGroups()...)
	}
	for alternative := range strings.SplitSeq(required, ";") {
		all := strings.Split(alternative, ",")
		if !slices.ContainsFunc(all, func(group string) bool { return !slices.Contains(groups, strings.TrimSpace(group)) }) {
			return true
		}
	}
	return false
}
