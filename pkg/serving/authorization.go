package serving

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// withRetries returns upstream's filter of authorization or impersonation, except that some errors of the
// authorizer become the response: one that suggests a delay, and one after the deadline of the request.
// Upstream responds with 500 or 403 to all errors. If the filter asks more than one question, the first such
// error is the response, unless the request is permitted in the end. The filter is created once, because
// upstream's caches of impersonation belong to it.
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

type replacedKey struct{}

// replacedFrom returns the response of the innermost filter around ctx. Upstream's filters ask all their
// questions before they call the next handler, i.e. before another filter may replace it.
func replacedFrom(ctx context.Context) *replaced {
	a, _ := ctx.Value(replacedKey{}).(*replaced)
	return a
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
