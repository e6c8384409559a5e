package authz

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// RequiredGroupsAnnotation lists, on a LogicalCluster, the groups of which a
// user must be a member: alternatives separated by commas, each of them groups
// separated by semicolons, all of which it takes.
const RequiredGroupsAnnotation = "authorization.kcp.io/required-groups"

// WithRequiredGroups withdraws what next allows from users who are not in the
// groups that the logical cluster requires. Its own service accounts are
// exempt. It looks after next has allowed, so that nobody else costs a look-up.
func WithRequiredGroups(next authorizer.Authorizer, find FindLogicalCluster) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := next.Authorize(ctx, a)
		name, clusterErr := request.ClusterNameFrom(ctx)
		if decision != authorizer.DecisionAllow || clusterErr != nil || isDeepReview(ctx) ||
			isLifecycle(ctx, a.GetUser()) || identity.IsLocalServiceAccount(name, a.GetUser()) {
			return decision, reason, err
		}
		lc, err := find(ctx, name)
		if err != nil {
			return authorizer.DecisionNoOpinion, "", fmt.Errorf("looking up logical cluster %q: %w", name, err)
		}
		if lc == nil || !inRequiredGroups(name, a.GetUser(), lc.Annotations[RequiredGroupsAnnotation]) {
			return authorizer.DecisionDeny, NotPermittedReason, nil
		}
		return decision, reason, nil
	})
}

// inRequiredGroups tells whether one identity of u is in all groups of one of
// the alternatives.
func inRequiredGroups(name logicalcluster.Name, u user.Info, required string) bool {
	if strings.TrimSpace(required) == "" {
		return true
	}
	var groups []string
	for _, i := range identity.In(name, u) {
		groups = append(groups, i.GetGroups()...)
	}
	for alternative := range strings.SplitSeq(required, ",") {
		all := strings.Split(alternative, ";")
		if !slices.ContainsFunc(all, func(group string) bool { return !slices.Contains(groups, strings.TrimSpace(group)) }) {
			return true
		}
	}
	return false
}
