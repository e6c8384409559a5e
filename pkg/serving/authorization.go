package serving

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// withRetries is upstream's filter of authorization, but for an error of the authorizer that says
// when to ask again, or came when the request's timeout had passed: that is the answer, where
// upstream gives 500 for all errors.
func withRetries(
	next http.Handler, a authorizer.UnconditionalAuthorizer, s runtime.NegotiatedSerializer,
	filter func(http.Handler, authorizer.UnconditionalAuthorizer, runtime.NegotiatedSerializer) http.Handler,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upstreams := &replaced{ResponseWriter: w}
		asked := authorizer.AuthorizerFunc(func(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
			decision, reason, err := a.Authorize(ctx, attributes)
			if decision != authorizer.DecisionAllow {
				upstreams.by = retryable(ctx, err)
			}
			return decision, reason, err
		})
		permitted := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { next.ServeHTTP(w, r) })
		filter(permitted, asked, s).ServeHTTP(upstreams, r)
		if upstreams.by != nil {
			respond(w, r, s, upstreams.by)
		}
	})
}

// retryable returns the API status in an error that says when to ask again, or that there was no
// time to decide, or nil.
func retryable(ctx context.Context, err error) *apierrors.StatusError {
	var status apierrors.APIStatus
	if _, later := apierrors.SuggestsClientDelay(err); later && errors.As(err, &status) {
		return &apierrors.StatusError{ErrStatus: status.Status()}
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return apierrors.NewTimeoutError("the request's timeout passed before it was decided whether it is allowed", 0)
	}
	return nil
}

// replaced is an answer that is not given if another one takes its place.
type replaced struct {
	http.ResponseWriter
	by *apierrors.StatusError
}

// Header implements http.ResponseWriter.
func (a *replaced) Header() http.Header {
	if a.by != nil {
		return http.Header{}
	}
	return a.ResponseWriter.Header()
}

// WriteHeader implements http.ResponseWriter.
func (a *replaced) WriteHeader(code int) {
	if a.by == nil {
		a.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (a *replaced) Write(data []byte) (int, error) {
	if a.by != nil {
		return len(data), nil //nolint:nilerr // nobody is to notice
	}
	return a.ResponseWriter.Write(data)
}
