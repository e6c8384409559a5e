package authz

import (
	"context"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

// DeepReviewHeader asks a SubjectAccessReview to leave out whether the subject
// may enter the logical cluster. It counts for members of system:masters only.
const DeepReviewHeader = "X-Kcp-Internal-Deep-SubjectAccessReview"

type deepReviewKey struct{}

// WithDeepReviews makes SubjectAccessReviews deep that ask for it. It comes
// after authentication.
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
	return ok && identity.MemberOf(ctx, u, user.SystemPrivilegedGroup)
}

func isDeepReview(ctx context.Context) bool {
	deep, _ := ctx.Value(deepReviewKey{}).(bool)
	return deep
}
