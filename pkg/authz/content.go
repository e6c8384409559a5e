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

// VerbAccess on the path / lets a user into a logical cluster.
const VerbAccess = "access"

// FindLogicalCluster returns the LogicalCluster of that name on this server, or
// nil where there is none.
type FindLogicalCluster func(ctx context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)

// NotPermitted begins the reason given to whom nothing is permitted in a logical
// cluster, whether it exists or not.
const NotPermitted = "workspace access not permitted"

// NotPermittedReason is the whole reason, the same on all servers. It says all
// that anybody may know: what can be the matter, and who can help.
const NotPermittedReason = NotPermitted + ": there is no such workspace, or its administrators have not given this user access to it"

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

// WithRequiredGroups asks next about users who may enter the logical cluster as
// far as others are concerned. It withdraws what next allows to those who are not
// in the groups that the logical cluster requires, and lets the server know that
// the others have entered. Its own service accounts are exempt, and as in kcp those
// who administer the installation: they name the groups, and must be able to undo that.
func WithRequiredGroups(next authorizer.Authorizer, find FindLogicalCluster) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		name, err := request.ClusterNameFrom(ctx)
		if err != nil || isDeepReview(ctx) || isLifecycle(ctx, a.GetUser()) || identity.IsLocalServiceAccount(name, a.GetUser()) {
			request.AccessAuthorized(ctx)
			return next.Authorize(ctx, a)
		}
		lc, err := find(ctx, name)
		if err != nil {
			return authorizer.DecisionNoOpinion, "", fmt.Errorf("looking up logical cluster %q: %w", name, err)
		}
		if lc != nil && isAdmitted(ctx, lc, a.GetUser()) {
			request.AccessAuthorized(ctx)
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
