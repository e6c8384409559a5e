package authz

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// VerbAccess on the path / lets a user into a logical cluster.
const VerbAccess = "access"

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
		if lc == nil || !tenancy.HasContent(lc.Status.Phase) && !identity.MemberOf(ctx, a.GetUser(), request.GroupAdmin) {
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
	decision, _, err := rules.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: VerbAccess, Path: "/"})
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	return false, err
}

// Awaits reports whether u may enter a logical cluster when it is for users, which it is
// not yet: its owner may, and whom rules give the verb access already.
func Awaits(ctx context.Context, rules authorizer.Authorizer, lc *corev1alpha1.LogicalCluster, u user.Info) bool {
	if !identity.IsLocalServiceAccount(clusterName(ctx), u) && !isAdmitted(ctx, lc, u) {
		return false
	}
	if IsOwner(lc, u) {
		return true // the binding that says so may be on its way
	}
	permitted, _ := mayEnter(ctx, rules, u)
	return permitted
}

// IsOwner reports whether u is the owner of a logical cluster.
func IsOwner(lc *corev1alpha1.LogicalCluster, u user.Info) bool {
	var parent logicalcluster.Name
	if lc.Spec.Owner != nil {
		parent = logicalcluster.Name(lc.Spec.Owner.Cluster)
	}
	owner, err := tenancy.OwnerName(lc.Annotations, parent)
	return err == nil && owner != "" && slices.ContainsFunc(identity.In(logicalcluster.From(lc), u), func(i user.Info) bool { return i.GetName() == owner })
}

// isLifecycle reports whether u is one of the servers that lead the lives of
// logical clusters, and so reach them before and after they are for users.
func isLifecycle(ctx context.Context, u user.Info) bool {
	return !identity.IsServiceAccount(u) && identity.MemberOf(ctx, u, request.GroupLogicalClusterAdmin, request.GroupExternalLogicalClusterAdmin)
}
