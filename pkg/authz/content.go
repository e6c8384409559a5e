package authz

import (
	"context"
	"fmt"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz/policy"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// verbAccess on the path / lets a user into a logical cluster.
const verbAccess = "access"

// WithWorkspaceContent asks next only about users who may enter the logical
// cluster: those whom rules give the verb access on the path /, and its own
// service accounts. While it is being initialized only administrators may. It
// has no opinion on the others, and gives them the same reason whether the
// logical cluster exists or not.
func WithWorkspaceContent(next, rules authorizer.Authorizer, find FindLogicalCluster) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		name, err := request.ClusterNameFrom(ctx)
		if err != nil || a.GetUser() == nil {
			return authorizer.DecisionNoOpinion, NotPermittedReason, nil //nolint:nilerr // without one logical cluster there is nothing to enter
		}
		if isDeepReview(ctx) || isLifecycle(ctx, a.GetUser()) {
			return next.Authorize(ctx, a)
		}
		if request.IsSystem(name) {
			return authorizer.DecisionNoOpinion, NotPermittedReason, nil
		}
		// Ask for rights first: a user without any must not cost a look-up, nor
		// learn from the time it takes whether the logical cluster exists.
		if permitted, err := mayEnter(ctx, rules, a.GetUser()); err != nil || !permitted {
			return authorizer.DecisionNoOpinion, NotPermittedReason, err
		}
		lc, err := find(ctx, name)
		if err != nil {
			return authorizer.DecisionNoOpinion, "", fmt.Errorf("looking up logical cluster %q: %w", name, err)
		}
		if lc == nil || !hasContent(lc) && !identity.MemberOf(ctx, a.GetUser(), request.GroupAdmin) {
			return authorizer.DecisionNoOpinion, NotPermittedReason, nil
		}
		return next.Authorize(ctx, a)
	})
}

// mayEnter reports whether u may enter the logical cluster of ctx, if it exists.
func mayEnter(ctx context.Context, rules authorizer.Authorizer, u user.Info) (bool, error) {
	if identity.IsLocalServiceAccount(clusterName(ctx), u) {
		return true, nil
	}
	decision, _, err := rules.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: verbAccess, Path: "/"})
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	return false, err
}

// hasContent reports whether a logical cluster is for users already.
func hasContent(lc *corev1alpha1.LogicalCluster) bool {
	switch lc.Status.Phase {
	case "", corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing:
		return false
	default:
		return true
	}
}

// isLifecycle reports whether u is one of the servers that lead the lives of
// logical clusters, and so reach them before and after they are for users.
func isLifecycle(ctx context.Context, u user.Info) bool {
	return !identity.IsServiceAccount(u) && identity.MemberOf(ctx, u, request.GroupLogicalClusterAdmin, policy.GroupExternalLogicalClusterAdmin)
}
