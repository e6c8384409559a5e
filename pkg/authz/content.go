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

// VerbAccess on the path / grants access to a logical cluster.
const VerbAccess = "access"

// FindLogicalCluster returns a LogicalCluster on this server, or nil.
type FindLogicalCluster func(ctx context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)

// NotPermitted is the prefix of NotPermittedReason.
const NotPermitted = "workspace access not permitted"

// NotPermittedReason is the reason for users without access to a logical cluster. It is the same on all
// servers, and whether or not the logical cluster exists.
const NotPermittedReason = NotPermitted + ": the workspace does not exist, or its administrators have not granted access to this user"

// WithWorkspaceContent calls next only for users with access to the logical cluster: users to whom rules
// grant the verb access on the path /, and its own service accounts. During initialization only
// administrators have access. For other users it has no opinion, and returns the same reason whether or not
// the logical cluster exists.
func WithWorkspaceContent(next, rules authorizer.Authorizer, find FindLogicalCluster) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		name, err := request.ClusterNameFrom(ctx)
		if err != nil || a.GetUser() == nil {
			return authorizer.DecisionNoOpinion, NotPermittedReason, nil //nolint:nilerr // without a logical cluster there is nothing to access
		}
		if isDeepReview(ctx) || isLifecycle(ctx, a.GetUser()) {
			return next.Authorize(ctx, a)
		}
		if request.IsSystem(name) {
			return authorizer.DecisionNoOpinion, NotPermittedReason, nil
		}
		// Check permissions first: a user without any must not cause a lookup, whose time would disclose
		// whether the logical cluster exists.
		if permitted, err := mayAccess(ctx, rules, a.GetUser()); err != nil || !permitted {
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

// mayAccess reports whether u has access to the logical cluster of ctx, if it exists.
func mayAccess(ctx context.Context, rules authorizer.Authorizer, u user.Info) (bool, error) {
	if identity.IsLocalServiceAccount(clusterName(ctx), u) {
		return true, nil
	}
	decision, _, err := rules.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: VerbAccess, Path: "/"})
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	return false, err
}

// Awaits reports whether u will have access to a logical cluster that is being created: its owner, and users
// to whom rules grant the verb access already.
func Awaits(ctx context.Context, rules authorizer.Authorizer, lc *corev1alpha1.LogicalCluster, u user.Info) bool {
	if !identity.IsLocalServiceAccount(clusterName(ctx), u) && !isAdmitted(ctx, lc, u) {
		return false
	}
	if IsOwner(lc, u) {
		return true // the binding of the owner may not exist yet
	}
	permitted, _ := mayAccess(ctx, rules, u)
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

// WithRequiredGroups restricts access to users in the required groups of the logical cluster. For other users
// it denies requests that next allows. It records the access of permitted users. Service accounts of the
// logical cluster are exempt and, as in kcp, administrators, because they set the annotation and must be able
// to change it.
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

// isAdmitted reports whether u is in the required groups of a logical cluster, which must be that of ctx.
func isAdmitted(ctx context.Context, lc *corev1alpha1.LogicalCluster, u user.Info) bool {
	return identity.MemberOf(ctx, u, request.GroupAdmin, request.GroupWorkspaceBootstrapper) ||
		inRequiredGroups(clusterName(ctx), u, lc.Annotations[tenancy.RequiredGroupsAnnotation])
}

// inRequiredGroups reports whether one identity of u is in all groups of one of the alternatives.
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
