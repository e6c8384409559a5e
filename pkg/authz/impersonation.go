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
	verbImpersonate = "impersonate"
	// maxImpersonated is how many groups and extra values a request may impersonate.
	// Each of them is a decision of its own.
	maxImpersonated = 64
	// maxImpersonatedBytes is how long these, the name and the UID may be together: upstream's filter remembers
	// for a while whom requests were allowed to impersonate, as many as there are.
	maxImpersonatedBytes = 16 << 10
)

// WithImpersonationScope restricts whom a request impersonates to its logical
// cluster, by adding the scope to the impersonation headers. It comes after the
// logical cluster is known and before upstream's filter, whose caches know
// nothing of logical clusters: with the scope in it their key is another one in
// each, or the client has stated that of another logical cluster and the user is in
// scope in neither. It answers 400 to requests that impersonate more than anybody is.
func WithImpersonationScope(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	header := authenticationv1.ImpersonateUserExtraHeaderPrefix + url.PathEscape(request.ExtraScopes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkImpersonated(r.Header); err != nil {
			responsewriters.ErrorNegotiated(err, s, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		if r.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			// Where a path leads nowhere the scope, which fits nothing then, is there
			// too, so that all answers are the same.
			name := clusterName(r.Context())
			if _, nowhere := request.NowhereFrom(r.Context()); nowhere || name != "" {
				r.Header.Add(header, scopeOf(name.String()))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// checkImpersonated refuses a request that impersonates more than anybody is.
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
		return apierrors.NewBadRequest(fmt.Sprintf("the request impersonates %d groups and extra values, at most %d are allowed", n, maxImpersonated))
	case bytes > maxImpersonatedBytes:
		return apierrors.NewBadRequest(fmt.Sprintf("the name, groups and extra values that the request impersonates have %d bytes, at most %d are allowed", bytes, maxImpersonatedBytes))
	}
	return nil
}

func scopeOf(cluster string) string { return request.ScopeClusterPrefix + cluster }

// WithImpersonationGuard denies everybody but members of system:masters to
// impersonate who is more than a logical cluster can make anybody: privileged
// groups, the servers, and attributes that say where a user belongs. About
// other impersonations it asks next, as about all other requests.
func WithImpersonationGuard(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if !impersonates(a) || identity.MemberOf(ctx, a.GetUser(), user.SystemPrivilegedGroup) {
			return next.Authorize(ctx, a)
		}
		if a.GetResource() == "userextras" && a.GetSubresource() == request.ExtraScopes && restricts(ctx, a.GetName()) {
			return authorizer.DecisionAllow, "scopes only restrict", nil
		}
		if reservedIdentity(a.GetResource(), a.GetSubresource(), a.GetName()) {
			// Who may not enter is told that, here as everywhere.
			if decision, reason, err := next.Authorize(ctx, a); decision != authorizer.DecisionAllow {
				return decision, reason, err
			}
			return authorizer.DecisionDeny, "only members of " + user.SystemPrivilegedGroup + " may impersonate it", nil
		}
		return next.Authorize(ctx, a)
	})
}

// restricts reports whether a scope can only take permissions away. This is so if WithImpersonationScope
// adds that of the logical cluster, because all scopes must fit. Elsewhere a scope would give the user the
// group of another logical cluster.
func restricts(ctx context.Context, scope string) bool {
	_, nowhere := request.NowhereFrom(ctx)
	return (nowhere || clusterName(ctx) != "") && identity.WellFormed(scope)
}

// impersonates reports whether it is to be decided who may be impersonated.
func impersonates(a authorizer.Attributes) bool {
	return a.IsResourceRequest() && (a.GetVerb() == verbImpersonate || strings.HasPrefix(a.GetVerb(), verbImpersonate+":"))
}

// reservedIdentity reports whether a user name, group or extra attribute is one
// that logical clusters have no say in, or may become one behind another server.
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
