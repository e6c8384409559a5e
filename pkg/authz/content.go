package authz

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
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

// WithWorkspaceContent calls next only for users with access to the logical cluster. These are its own service
// accounts, and users to whom rules grant the verb access on the path /. During initialization only administrators have
// access. For other users it has no opinion, and returns the same reason whether or not the logical cluster exists.
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

// WillHaveAccess reports whether u will have access to a logical cluster that is being created. This applies to its
// owner, and to users to whom rules already grant the verb access.
func WillHaveAccess(ctx context.Context, rules authorizer.Authorizer, lc *corev1alpha1.LogicalCluster, u user.Info) bool {
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

// WithRequiredGroups restricts access to users in the required groups of the logical cluster. For other users it denies
// requests that next allows. It records the access of permitted users. Service accounts of the logical cluster are
// exempt and, as in kcp, administrators, because they set the annotation and must be able to change it.
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

// isAdmitted reports whether u is in the required groups of a logical cluster. ctx must be for this
// logical cluster.
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

// DeepReviewHeader makes a SubjectAccessReview skip the check for access to the logical cluster. It is
// honored for members of system:masters and for shards only.
const DeepReviewHeader = request.InternalHeaderPrefix + "Deep-SubjectAccessReview"

type deepReviewKey struct{}

// WithDeepReviews handles DeepReviewHeader. It must run after authentication.
func WithDeepReviews(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(DeepReviewHeader) == "true" && mayReviewDeeply(r.Context()) {
			r = r.WithContext(context.WithValue(r.Context(), deepReviewKey{}, true))
		}
		next.ServeHTTP(w, r)
	})
}

func mayReviewDeeply(ctx context.Context) bool {
	info, ok := apirequest.RequestInfoFrom(ctx)
	if !ok || !info.IsResourceRequest || info.APIGroup != authorizationv1.GroupName || info.Resource != "subjectaccessreviews" {
		return false
	}
	u, ok := apirequest.UserFrom(ctx)
	return ok && identity.MemberOf(ctx, u, user.SystemPrivilegedGroup, request.GroupShards)
}

func isDeepReview(ctx context.Context) bool {
	return ctx.Value(deepReviewKey{}) != nil
}

// ReviewOf returns an access review for a user, which the caller completes.
func ReviewOf(u user.Info) *authorizationv1.SubjectAccessReview {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
	}}
	for key, values := range u.GetExtra() {
		review.Spec.Extra[key] = values
	}
	return review
}

// RequestDeepReview sends a deep review to a logical cluster, which may have been deleted.
func RequestDeepReview(ctx context.Context, scope client.Scope, review *authorizationv1.SubjectAccessReview) (allowed bool, err error) {
	config := scope.Config()
	config.GroupVersion = &authorizationv1.SchemeGroupVersion
	config.APIPath, config.NegotiatedSerializer = "/apis", kinds.Codecs.WithoutConversion()
	c, err := rest.RESTClientForConfigAndClient(config, scope.HTTPClient())
	if err != nil {
		return false, err
	}
	response := &authorizationv1.SubjectAccessReview{}
	err = c.Post().Resource("subjectaccessreviews").SetHeader(DeepReviewHeader, "true").Body(review).Do(ctx).Into(response)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	return response.Status.Allowed, err
}

// maxCachedReviews limits the cached results.
//
//reference:none
const maxCachedReviews = 10_000

// ReviewCache caches access reviews of other servers. It is safe for concurrent use.
type ReviewCache struct {
	allowedFor, deniedFor time.Duration

	known  *cache.LRUExpireCache
	flight singleflight.Group
}

// NewReviewCache returns a ReviewCache of reviews that allow or deny for the given times; 0 disables caching.
func NewReviewCache(allowedFor, deniedFor time.Duration) *ReviewCache {
	return &ReviewCache{allowedFor: allowedFor, deniedFor: deniedFor, known: cache.NewLRUExpireCache(maxCachedReviews)}
}

// May returns the result of a review by the server where. If it is not cached, send is called once for
// concurrent equal reviews; its context does not end with any of the requests.
func (a *ReviewCache) May(ctx context.Context, where string, review *authorizationv1.SubjectAccessReview, send func(context.Context) (bool, error)) (bool, error) {
	text, err := json.Marshal(review.Spec)
	if err != nil {
		return false, fmt.Errorf("encoding the access review of user %q: %w", review.Spec.User, err)
	}
	// A digest, because users control the size of a review by the groups and names that they impersonate.
	sum := sha256.Sum256(append([]byte(where+"|"), text...))
	key := string(sum[:])
	if may, ok := a.known.Get(key); ok {
		return may.(bool), nil
	}
	done := a.flight.DoChan(key, func() (any, error) {
		may, err := send(context.WithoutCancel(ctx))
		keep := a.deniedFor
		if may {
			keep = a.allowedFor
		}
		if err == nil && keep > 0 {
			a.known.Add(key, may, keep)
		}
		return may, err
	})
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case result := <-done:
		may, _ := result.Val.(bool)
		return may, result.Err
	}
}
