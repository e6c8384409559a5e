package authz

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	sdkapis "github.com/kcp-dev/sdk/apis/apis"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	sdktenancy "github.com/kcp-dev/sdk/apis/tenancy"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// WithWildcardGate denies requests for all logical clusters, except to members of system:masters and for reads of
// shards. Administrators may list and watch if a front-proxy merges the responses of all shards.
func WithWildcardGate(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		cluster, ok := request.ClusterFrom(ctx)
		switch {
		case !ok || !cluster.Wildcard || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup),
			IsRead(a) && identity.MemberOf(ctx, a.GetUser(), request.GroupShards):
			return next.Authorize(ctx, a)
		case request.IsMerged(ctx) && a.IsResourceRequest() && (a.GetVerb() == "list" || a.GetVerb() == "watch") &&
			identity.MemberOf(ctx, a.GetUser(), request.GroupAdmin):
			request.AccessAuthorized(ctx)
			return authorizer.DecisionAllow, "", nil
		default:
			return authorizer.DecisionDeny, "requests for all logical clusters need group " + user.SystemPrivilegedGroup, nil
		}
	})
}

// WithAdminGate authorizes requests for request.Admin, which contains objects of the installation. It allows all
// requests of administrators and reads of shards, and denies requests of all other users regardless of rules.
// Impersonation is authorized by next.
func WithAdminGate(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		reads := IsRead(a) || !a.IsResourceRequest() && (a.GetVerb() == "get" || a.GetVerb() == "head")
		switch {
		case request.ScopeFrom(ctx).Mount != request.Admin, strings.HasPrefix(a.GetVerb(), verbImpersonate):
			return next.Authorize(ctx, a)
		case identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup, request.GroupAdmin),
			reads && identity.MemberOf(ctx, a.GetUser(), request.GroupShards):
			return authorizer.DecisionAllow, "", nil
		default:
			return authorizer.DecisionDeny, "requests for the complete installation need group " + request.GroupAdmin, nil
		}
	})
}

// protectedStatus are the resources whose status servers rely on, e.g. for the phase of a logical cluster and
// its bound APIs. Only the system may write it.
var protectedStatus = map[schema.GroupResource]bool{
	{Group: sdkapis.GroupName, Resource: "apibindings"}:   true,
	{Group: sdkapis.GroupName, Resource: "apiexports"}:    true,
	{Group: core.GroupName, Resource: "logicalclusters"}:  true,
	{Group: sdktenancy.GroupName, Resource: "workspaces"}: true,
}

// WithProtectedStatus denies writes of the status of system APIs to all users except administrators and
// servers, regardless of the rules of the logical cluster. It calls next for all other requests.
func WithProtectedStatus(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		writes := a.GetVerb() == "update" || a.GetVerb() == "patch" || a.GetVerb() == "create" || a.GetVerb() == "delete"
		if writes && a.GetSubresource() == "status" && protectedStatus[schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}] &&
			!identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup, request.GroupAdmin) && !isLifecycle(ctx, a.GetUser()) {
			return authorizer.DecisionDeny, "the status of " + a.GetResource() + " may only be written by the system", nil
		}
		return next.Authorize(ctx, a)
	})
}

// WithMaximalPermission calls next only for requests that the maximal permission policy of the provider of a bound API
// permits. permits allows requests without a policy, and denies, with a reason, those that the policy does not permit.
func WithMaximalPermission(next authorizer.Authorizer, permits authorizer.AuthorizerFunc) authorizer.Authorizer {
	if permits == nil {
		return next
	}
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if decision, reason, err := permits(ctx, a); decision != authorizer.DecisionAllow {
			return decision, reason, err
		}
		return next.Authorize(ctx, a)
	})
}

// IsPrivilegedGroup reports whether a group has permissions that no logical cluster can grant.
func IsPrivilegedGroup(group string) bool {
	return group == user.SystemPrivilegedGroup || strings.HasPrefix(group, request.GroupPrefix)
}

// Privileged allows all requests of members of the groups, and has no opinion otherwise. A user who is
// restricted to logical clusters is a member in these only.
func Privileged(groups ...string) authorizer.Authorizer {
	return onlyIf(allow, func(ctx context.Context, a authorizer.Attributes) bool {
		return identity.MemberOf(ctx, a.GetUser(), groups...)
	})
}

var allow = authorizerfactory.NewAlwaysAllowAuthorizer()

// onlyIf calls next for requests that meet the condition, and has no opinion on all others.
func onlyIf(next authorizer.Authorizer, meets func(context.Context, authorizer.Attributes) bool) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if !meets(ctx, a) {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return next.Authorize(ctx, a)
	})
}

// OnProcess calls next for requests about the process, and has no opinion on a logical cluster, existing or not.
func OnProcess(next authorizer.Authorizer) authorizer.Authorizer {
	return onlyIf(WithoutCluster(next), func(ctx context.Context, _ authorizer.Attributes) bool {
		_, unresolved := request.UnresolvedPathFrom(ctx)
		return !unresolved
	})
}

func onMetrics(next authorizer.Authorizer) authorizer.Authorizer {
	return onlyIf(next, func(_ context.Context, a authorizer.Attributes) bool {
		return !a.IsResourceRequest() && (a.GetPath() == "/metrics" || strings.HasPrefix(a.GetPath(), "/metrics/"))
	})
}

// WithoutCluster calls next for requests about the process itself, or on a path that does not exist.
func WithoutCluster(next authorizer.Authorizer) authorizer.Authorizer {
	return onlyIf(next, func(ctx context.Context, _ authorizer.Attributes) bool {
		_, ok := request.ClusterFrom(ctx)
		return !ok
	})
}

const verbImpersonate = "impersonate"

// impersonates reports whether the request is the authorization of an impersonation.
func impersonates(a authorizer.Attributes) bool {
	return a.IsResourceRequest() && (a.GetVerb() == verbImpersonate || strings.HasPrefix(a.GetVerb(), verbImpersonate+":"))
}

// isLifecycle reports whether u is a server with access to logical clusters before and after they have users.
func isLifecycle(ctx context.Context, u user.Info) bool {
	return !identity.IsServiceAccount(u) && identity.MemberOf(ctx, u, request.GroupLogicalClusterAdmin, request.GroupExternalLogicalClusterAdmin)
}

// clusterName returns the logical cluster of ctx, or "".
func clusterName(ctx context.Context) logicalcluster.Name {
	cluster, _ := request.ClusterFrom(ctx)
	return cluster.Name
}

// Shards allows other shards to read all resources and discovery, to create SubjectAccessReviews, and to write Shards
// and Leases in root. Admission restricts these writes to their own objects. It has no opinion otherwise.
func Shards() authorizer.Authorizer {
	return onlyIf(allow, func(ctx context.Context, a authorizer.Attributes) bool {
		_, ok := identity.ShardOf(ctx, a.GetUser())
		return ok && shardMayAccess(ctx, a)
	})
}

func shardMayAccess(ctx context.Context, a authorizer.Attributes) bool {
	cluster, inCluster := request.ClusterFrom(ctx)
	if !a.IsResourceRequest() {
		discovery := strings.HasPrefix(a.GetPath(), "/api/") || strings.HasPrefix(a.GetPath(), "/apis/")
		return a.GetVerb() == "get" && inCluster && discovery
	}
	if IsRead(a) {
		return true
	}
	resource := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	switch {
	case a.GetSubresource() != "":
		return false
	case resource == authorizationv1.Resource("subjectaccessreviews"):
		return a.GetVerb() == "create"
	case resource == corev1alpha1.Resource("shards"), resource == coordinationv1.Resource("leases"):
		return cluster.Name == core.RootCluster && (a.GetVerb() == "create" || a.GetVerb() == "update" || a.GetVerb() == "patch")
	default:
		return false
	}
}

// IsRead reports whether a request reads a resource.
func IsRead(a authorizer.Attributes) bool {
	return a.IsResourceRequest() && (a.GetVerb() == "get" || a.GetVerb() == "list" || a.GetVerb() == "watch")
}

// VirtualWorkspaces authorizes requests to the content of other logical clusters through a virtual workspace.
type VirtualWorkspaces interface {
	// Opens authorizes the use of the virtual workspace. next authorizes requests to its granting logical cluster.
	Opens(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error)
	// Permits authorizes a request within the virtual workspace, for its user. No opinion denies the request.
	Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	// Shows reports whether the virtual workspace contains the requested content, so that users may see that it exists.
	Shows(ctx context.Context) bool
}

// WithVirtualWorkspaces first authorizes the use of the virtual workspace of a request, and then the request
// within it. Therefore, users without access cannot see its content. Impersonation is authorized by the
// logical cluster that grants the virtual workspace, like other requests to it. A user of the virtual
// workspace is recorded as authorized for the content that it shows. A user of the logical cluster that
// grants the virtual workspace is not.
func WithVirtualWorkspaces(next authorizer.Authorizer, virtualWorkspaces VirtualWorkspaces) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if request.VirtualWorkspaceFrom(ctx) == nil {
			return next.Authorize(ctx, a)
		}
		if virtualWorkspaces == nil {
			return authorizer.DecisionDeny, "this server has no virtual workspaces", nil
		}
		granting := request.OnAccessAuthorized(ctx, func() {}) // the granting logical cluster is not the requested content
		opens, reason, err := virtualWorkspaces.Opens(granting, a, next)
		if opens == authorizer.DecisionAllow && virtualWorkspaces.Shows(ctx) {
			request.AccessAuthorized(ctx)
		}
		switch {
		case strings.HasPrefix(a.GetVerb(), verbImpersonate):
			return next.Authorize(granting, a)
		case opens != authorizer.DecisionAllow:
			return opens, reason, err
		}
		return virtualWorkspaces.Permits(ctx, a)
	})
}

// WithinVirtualWorkspaces authorizes requests that have passed through a virtual workspace as if their senders sent
// them again. It is used if an update creates an object, because the verb create has not been authorized yet.
func WithinVirtualWorkspaces(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		through, found := request.ThroughFrom(ctx)
		if !found {
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

func (a as) GetUser() user.Info { return a.u }

const (
	// maxImpersonated limits the groups and extra values of a request, because each is authorized separately.
	//
	//reference:limit request | impersonation: groups and extra values | 400
	maxImpersonated = 64
	// maxImpersonatedBytes limits these, the name and the UID together, because upstream's filter caches them.
	//
	//reference:limit request | impersonation: size of the user | 400
	maxImpersonatedBytes = 16 << 10
)

// WithImpersonationScope restricts impersonated users to the logical cluster of the request, by adding the
// scope to the impersonation headers. It must run after the logical cluster is determined. It must run before
// upstream's filter, whose cache keys do not contain the logical cluster: because of the scope, keys of
// different logical clusters differ. If a client adds the scope of another logical cluster, the user is in
// scope in neither. Requests that impersonate too many groups or extra values get status 400.
func WithImpersonationScope(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	header := authenticationv1.ImpersonateUserExtraHeaderPrefix + url.PathEscape(request.ExtraScopes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkImpersonated(r.Header); err != nil {
			responsewriters.ErrorNegotiated(err, s, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		if r.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			// If the path does not exist, a scope that never matches is added too, so that all responses are the same.
			name := clusterName(r.Context())
			if _, unresolved := request.UnresolvedPathFrom(r.Context()); unresolved || name != "" {
				r.Header.Add(header, request.ScopeClusterPrefix+name.String())
			}
		}
		next.ServeHTTP(w, r)
	})
}

func checkImpersonated(header http.Header) error {
	n, bytes := 0, len(header.Get(authenticationv1.ImpersonateUserHeader))+len(header.Get(authenticationv1.ImpersonateUIDHeader))
	for key, values := range header {
		if key != authenticationv1.ImpersonateGroupHeader && !strings.HasPrefix(key, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
			continue
		}
		n += len(values)
		for _, value := range values {
			bytes += len(key) + len(value)
		}
	}
	switch {
	case n > maxImpersonated:
		return apierrors.NewBadRequest(fmt.Sprintf("the request impersonates %d groups and extra values, at most %d allowed", n, maxImpersonated))
	case bytes > maxImpersonatedBytes:
		return apierrors.NewBadRequest(fmt.Sprintf("the name, groups and extra values that the request impersonates have %d bytes, at most %d allowed", bytes, maxImpersonatedBytes))
	}
	return nil
}

// WithImpersonationGuard denies the impersonation of users, groups and attributes that no logical cluster can
// grant, except to members of system:masters. It calls next for all other requests.
func WithImpersonationGuard(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if !impersonates(a) || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup) {
			return next.Authorize(ctx, a)
		}
		if a.GetResource() == "userextras" && a.GetSubresource() == request.ExtraScopes && restricts(ctx, a.GetName()) {
			return authorizer.DecisionAllow, "scopes only restrict", nil
		}
		if reservedIdentity(a.GetResource(), a.GetSubresource(), a.GetName()) {
			// Users without access get the usual reason.
			if decision, reason, err := next.Authorize(ctx, a); decision != authorizer.DecisionAllow {
				return decision, reason, err
			}
			return authorizer.DecisionDeny, "only members of " + user.SystemPrivilegedGroup + " may impersonate it", nil
		}
		return next.Authorize(ctx, a)
	})
}

// restricts reports whether a scope can only remove permissions: WithImpersonationScope adds that of the logical
// cluster, and all scopes must match. Otherwise, it would give the user the group of another logical cluster.
func restricts(ctx context.Context, scope string) bool {
	_, unresolved := request.UnresolvedPathFrom(ctx)
	return (unresolved || clusterName(ctx) != "") && identity.WellFormed(scope)
}

// reservedIdentity reports whether a user, group or extra attribute is one that logical clusters cannot
// grant, or could become one on another server.
func reservedIdentity(resource, subresource, name string) bool {
	if !identity.WellFormed(name) || !identity.WellFormed(subresource) {
		return true
	}
	switch resource {
	case "users":
		return name == user.APIServerUser
	case "groups":
		return IsPrivilegedGroup(name)
	case "userextras":
		return strings.HasPrefix(subresource, "authentication.kcp.io/") || strings.HasPrefix(subresource, "authorization.kcp.io/")
	default:
		return false
	}
}
