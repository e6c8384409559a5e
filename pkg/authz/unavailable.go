package authz

import (
	"context"
	"errors"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// Unavailable returns the answer to a request that failed by err: 503, to be sent again in a
// second, where not everything is known yet that decides, and otherwise err.
func Unavailable(err error) error {
	if !errors.Is(err, client.ErrIncomplete) {
		return err
	}
	return request.Unavailable(err.Error())
}

// withUnavailable has next say by Unavailable why it does not decide.
func withUnavailable(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := next.Authorize(ctx, a)
		return decision, reason, Unavailable(err)
	})
}
