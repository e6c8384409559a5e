package authz

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

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
// scope to the impersonation headers. It must run after the logical cluster is determined, and before
// upstream's filter, whose cache keys do not contain the logical cluster: with the scope, they differ for
// each. If a client adds the scope of another logical cluster, the user is in scope in neither. Requests that
// impersonate too many groups or extra values get status 400.
func WithImpersonationScope(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	header := authenticationv1.ImpersonateUserExtraHeaderPrefix + url.PathEscape(request.ExtraScopes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkImpersonated(r.Header); err != nil {
			responsewriters.ErrorNegotiated(err, s, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		if r.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			// If the path does not exist, a scope that never matches is added too, so that all responses are
			// the same.
			name := clusterName(r.Context())
			if _, nowhere := request.NowhereFrom(r.Context()); nowhere || name != "" {
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

// restricts reports whether a scope can only remove permissions. This is true if WithImpersonationScope adds
// the scope of the logical cluster, because all scopes must match. Otherwise, the scope would give the user
// the group of another logical cluster.
func restricts(ctx context.Context, scope string) bool {
	_, nowhere := request.NowhereFrom(ctx)
	return (nowhere || clusterName(ctx) != "") && identity.WellFormed(scope)
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
