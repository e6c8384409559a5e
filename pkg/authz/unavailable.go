package authz

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client"
)

// Unavailable returns the answer to a request that failed by err: 503, to be sent again in a
// second, where not everything is known yet that decides, and otherwise err.
func Unavailable(err error) error {
	if !errors.Is(err, client.ErrIncomplete) {
		return err
	}
	answer := apierrors.NewServiceUnavailable(err.Error())
	answer.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return answer
}

// withUnavailable has next say by Unavailable why it does not decide.
func withUnavailable(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := next.Authorize(ctx, a)
		return decision, reason, Unavailable(err)
	})
}
