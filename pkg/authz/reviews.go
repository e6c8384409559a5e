package authz

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

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
	deep, _ := ctx.Value(deepReviewKey{}).(bool)
	return deep
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
