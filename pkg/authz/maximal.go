package authz

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// MaximalPermission decides whether the policy of the provider of a bound API
// permits a request. It allows what it does not bound, and denies, with a
// reason, what it does not permit.
type MaximalPermission func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)

// WithMaximalPermission asks next only about requests that the policy allows.
// Without a policy it is next.
func WithMaximalPermission(next authorizer.Authorizer, permits MaximalPermission) authorizer.Authorizer {
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
