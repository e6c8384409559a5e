package serving

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// withRetries returns upstream's filter for authorization or impersonation, which responds with 500
// or 403 to all errors of the authorizer. If an error suggests a delay, or the request deadline has
// passed, that error becomes the response instead. If the filter calls the authorizer several
// times, the first such error is used unless the request is finally allowed. The filter must be
// created only once, because it contains upstream's impersonation caches.
func withRetries(
	next http.Handler, a authorizer.UnconditionalAuthorizer, s runtime.NegotiatedSerializer,
	filter func(http.Handler, authorizer.UnconditionalAuthorizer, runtime.NegotiatedSerializer) http.Handler,
) http.Handler {
	filtered := filter(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			upstreams := replacedFrom(r.Context())
			upstreams.by = nil
			next.ServeHTTP(upstreams.ResponseWriter, r)
		}),
		authorizer.AuthorizerFunc(func(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
			decision, reason, err := a.Authorize(ctx, attributes)
			if upstreams := replacedFrom(ctx); decision != authorizer.DecisionAllow && upstreams.by == nil {
				upstreams.by = retryable(ctx, err)
			}
			return decision, reason, err
		}), s)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upstreams := &replaced{ResponseWriter: w}
		filtered.ServeHTTP(upstreams, r.WithContext(context.WithValue(r.Context(), replacedKey{}, upstreams)))
		if upstreams.by != nil {
			respond(w, r, s, upstreams.by)
		}
	})
}

// retryable returns the API status of an error that suggests a delay, a timeout error if the
// deadline has passed, or nil.
func retryable(ctx context.Context, err error) *apierrors.StatusError {
	var status apierrors.APIStatus
	if _, later := apierrors.SuggestsClientDelay(err); later && errors.As(err, &status) {
		return &apierrors.StatusError{ErrStatus: status.Status()}
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return apierrors.NewTimeoutError("the request timed out before it was authorized", 0)
	}
	return nil
}

// replaced is a response that is discarded if by is set.
type replaced struct {
	http.ResponseWriter
	by *apierrors.StatusError
}

type replacedKey struct{}

// replacedFrom returns the response of the innermost filter. Upstream's filters call the authorizer
// only before the next handler, i.e. before another filter replaces it.
func replacedFrom(ctx context.Context) *replaced {
	a, _ := ctx.Value(replacedKey{}).(*replaced)
	return a
}

func (a *replaced) Header() http.Header {
	if a.by != nil {
		return http.Header{}
	}
	return a.ResponseWriter.Header()
}

func (a *replaced) WriteHeader(code int) {
	if a.by == nil {
		a.ResponseWriter.WriteHeader(code)
	}
}

func (a *replaced) Write(data []byte) (int, error) {
	if a.by != nil {
		return len(data), nil //nolint:nilerr // the response is discarded
	}
	return a.ResponseWriter.Write(data)
}
